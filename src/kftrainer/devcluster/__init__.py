"""A real Kubernetes control plane on this machine, as plain processes on loopback.

For tests and for `kftrainer dev`. Of the operator it imports only `machinery.certs.x509` and
`kube.client`, so plugin authors can use it on its own; nothing specific to training belongs here.
"""
