"""Addresses of pods: a range for each node."""

from ipaddress import IPv4Address, IPv4Network

# The lower half of the pods' range is used by fake nodes.
FIRST_RANGE = IPv4Network("10.244.128.0/24")
MOST_NODES = 100
RESERVED = 2  # the first address and the network's own


class AddressesExhaustedError(Exception):
    """All addresses of a node are in use."""


class Addresses:
    """The addresses of one node; those that were used longest ago are used first."""

    def __init__(self, node: int) -> None:
        start = FIRST_RANGE.network_address + node * FIRST_RANGE.num_addresses
        self.network = IPv4Network((start, FIRST_RANGE.prefixlen))
        self._free = [str(each) for each in self.network.hosts()][RESERVED - 1 :]
        self._used: dict[str, str] = {}

    def take(self, pod: str) -> str:
        """Return the address of the pod with this UID."""
        if pod not in self._used:
            if not self._free:
                raise AddressesExhaustedError(f"all addresses in {self.network} are in use")
            self._used[pod] = self._free.pop(0)
        return self._used[pod]

    def release(self, pod: str) -> None:
        """Free the address of the pod."""
        if (ip := self._used.pop(pod, None)) is not None:
            self._free.append(str(IPv4Address(ip)))
