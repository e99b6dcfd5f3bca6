"""Limits the number of values of a metric label that users choose."""

OTHER = "_other"  # cannot be a name of a Kubernetes object, which has no underscore


class BoundedLabels:
    """The label values with their own series; values beyond the limit share OTHER.

    A value is in use while it is held. When nothing holds it any more, its slot is free.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: dict[str, int] = {}

    def label(self, value: str) -> str:
        """Return the value if it is held or a slot is free, else OTHER."""
        return value if value in self._holders or len(self._holders) < self._most else OTHER

    def hold(self, label: str) -> None:
        """Count one more use of the label."""
        if label != OTHER:
            self._holders[label] = self._holders.get(label, 0) + 1

    def release(self, label: str) -> None:
        """Count one use less."""
        if label == OTHER:
            return
        self._holders[label] -= 1
        if not self._holders[label]:
            del self._holders[label]
