"""A real Kubernetes control plane on this machine, as plain processes on loopback.

For tests and for `kftrainer dev`. It stands beside the operator and imports nothing of it, so that
the author of a plugin can use it alone; what belongs to training does not belong here.
"""
