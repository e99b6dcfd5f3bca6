"""A real Kubernetes control plane on this machine, as plain processes on loopback.

For tests and for `kftrainer dev`. It imports nothing of the operator, so plugin authors can use it
on its own; nothing specific to training belongs here.
"""
