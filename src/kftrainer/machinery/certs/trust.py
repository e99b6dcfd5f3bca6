"""Tracks for how long all clients have trusted each authority, by the local clock. Pure."""

from collections.abc import Collection, Mapping, Sequence

from cryptography import x509

from kftrainer.machinery.certs.authority import OVERLAP, SETTLED_AFTER
from kftrainer.machinery.certs.x509_parsing import certificates_in


class Trust:
    """The authorities in the CA bundles of all clients, and since when."""

    def __init__(self) -> None:
        self._since: dict[x509.Certificate, float] = {}

    def saw(
        self, bundles: Sequence[bytes], authorities: Collection[x509.Certificate], now: float
    ) -> None:
        """Record all bundles that exist; without any, the given authorities count as trusted."""
        known = [set(certificates_in(each)) for each in bundles] or [set(authorities)]
        told = set.intersection(*known)
        self._since = {each: self._since.get(each, now) for each in told}

    def told_for(self, now: float) -> Mapping[x509.Certificate, float]:
        """Return the seconds for which all clients have trusted each authority."""
        return {each: now - since for each, since in self._since.items()}

    def changes_in(self, now: float) -> float | None:
        """Return the seconds until an authority reaches a threshold; None if none will."""
        ends = [
            since + enough for since in self._since.values() for enough in (SETTLED_AFTER, OVERLAP)
        ]
        return min((end - now for end in ends if end > now), default=None)
