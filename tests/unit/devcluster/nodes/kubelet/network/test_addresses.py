import pytest

from kftrainer.devcluster.nodes.kubelet.network.addresses import (
    Addresses,
    AddressesExhaustedError,
)


def test_nodes_have_different_ranges() -> None:
    assert [Addresses(node).take("a") for node in (0, 1)] == ["10.244.128.2", "10.244.129.2"]


def test_address_stays_until_it_is_released_and_is_used_last_afterwards() -> None:
    addresses = Addresses(0)
    first = addresses.take("a")
    assert addresses.take("a") == first
    addresses.release("a")
    others = [addresses.take(str(number)) for number in range(253)]
    assert others[-1] == first
    with pytest.raises(AddressesExhaustedError):
        addresses.take("one more")
