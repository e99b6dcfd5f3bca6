"""A fence before writes: nothing is sent once we have no right to write any more."""

from collections.abc import Callable

from kftrainer.kube.errors import KubeError

# Asked right before each attempt of a write, because a wait may lie between two attempts.
Fence = Callable[[], bool]


class FencedError(KubeError):
    """The write was not sent: by our own word we may not write any more, as after a lost lease."""
