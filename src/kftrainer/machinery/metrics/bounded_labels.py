"""Values of a metric's label that others choose: so many of them at a time, and no more."""

OTHER = "_other"  # no name of a Kubernetes object has an underscore


class BoundedLabels:
    """Which values have a series of their own; those that find no room are all the same one.

    Who uses a label holds it. When nobody does, there is room for another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: dict[str, int] = {}

    def label(self, value: str) -> str:
        """The value itself, if it is held or there is room; else the one of all others."""
        return value if value in self._holders or len(self._holders) < self._most else OTHER

    def hold(self, label: str) -> None:
        """One more uses the label."""
        if label != OTHER:
            self._holders[label] = self._holders.get(label, 0) + 1

    def release(self, label: str) -> None:
        """One fewer does."""
        if label == OTHER:
            return
        self._holders[label] -= 1
        if not self._holders[label]:
            del self._holders[label]
