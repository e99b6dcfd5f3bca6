"""The error of everything that computes the inputs of containers."""


class InputError(Exception):
    """A value or a volume is not available; the message is the one of the Kubernetes kubelet."""
