"""Numbers of accelerators in ResourceClaimTemplates."""

from typing import Any

import pytest

from kftrainer.runtime.resources.claims import devices_in
from tests.support.objects import Object


def template(*requests: Object) -> Object:
    return {"spec": {"spec": {"devices": {"requests": [*requests]}}}}


def exactly(name: str = "gpu", **fields: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "acme.com", **fields}}


def first_of(*alternatives: Object, name: str = "gpu") -> Object:
    return {"name": name, "firstAvailable": [*alternatives]}


def alternative(name: str = "any", device: str = "acme.com", **fields: Any) -> Object:
    return {"name": name, "deviceClassName": device, **fields}


@pytest.mark.parametrize(
    ("requests", "count"),
    [
        ([], 0),
        ([exactly()], 1),
        ([exactly(count=4)], 4),
        ([exactly("my-gpus", count=4), exactly("gpu-2", count=2)], 6),
        ([exactly("nic", count=4)], 0),
        ([exactly("fast", count=2, deviceClassName="gpu.nvidia.com")], 2),
        ([exactly("part", count=7, deviceClassName="mig.nvidia.com")], 7),
        ([exactly("net", deviceClassName="nic.gpu.example.com")], 0),
        ([exactly(allocationMode="All")], 1),
        ([exactly(count=2, adminAccess=True)], 0),
        ([first_of(alternative(count=4), alternative(count=2))], 2),
        ([first_of(alternative("gpu", count=2), alternative("cpu"), name="any")], 0),
        ([first_of(alternative(device="gpu.amd.com", count=3), name="any")], 3),
    ],
)
def test_number_of_accelerators(requests: list[Object], count: int) -> None:
    assert devices_in(template(*requests)) == count


@pytest.mark.parametrize("document", [{}, {"spec": None}, {"spec": {"spec": {"devices": None}}}])
def test_template_without_requests_has_no_devices(document: Object) -> None:
    assert devices_in(document) == 0
