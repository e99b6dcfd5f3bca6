"""For how long all clients have been told to trust each authority, by our own clock. Pure."""

from collections.abc import Collection, Mapping, Sequence

from cryptography import x509

from kftrainer.machinery.certs.authority import OVERLAP, SETTLED_AFTER
from kftrainer.machinery.certs.x509_parsing import certificates_in


class Trust:
    """What was seen of the bundles that clients have."""

    def __init__(self) -> None:
        self._since: dict[x509.Certificate, float] = {}

    def saw(
        self, bundles: Sequence[bytes], authorities: Collection[x509.Certificate], now: float
    ) -> None:
        """These are all bundles there are; without any, there is nobody who does not trust ours."""
        known = [set(certificates_in(each)) for each in bundles] or [set(authorities)]
        told = set.intersection(*known)
        self._since = {each: self._since.get(each, now) for each in told}

    def told_for(self, now: float) -> Mapping[x509.Certificate, float]:
        """The seconds that all clients have been told of each authority of which they have."""
        return {each: now - since for each, since in self._since.items()}

    def changes_in(self, now: float) -> float | None:
        """Seconds until one of these has been long enough for something."""
        ends = [
            since + enough for since in self._since.values() for enough in (SETTLED_AFTER, OVERLAP)
        ]
        return min((end - now for end in ends if end > now), default=None)
