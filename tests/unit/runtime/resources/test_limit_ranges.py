from copy import deepcopy
from typing import Any

import pytest

from kftrainer.runtime.resources.limit_ranges import with_defaults
from kftrainer.runtime.resources.pod_requests import pod_requests
from tests.support.objects import Object


def limit_range(name: str = "defaults", **item: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"limits": [{"type": "Container", **item}]},
    }


def filled(resources: Object | None, *ranges: Object) -> Any:
    container = {"name": "main"} if resources is None else {"name": "main", "resources": resources}
    return with_defaults({"containers": [container]}, ranges)["containers"][0].get("resources")


CPU = limit_range(default={"cpu": "2"}, defaultRequest={"cpu": "500m"})


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}}),
        ({"limits": None}, {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}}),
        ({"requests": {"cpu": "1"}}, {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}),
        ({"requests": {"cpu": "0"}}, {"limits": {"cpu": "2"}, "requests": {"cpu": "0"}}),
        ({"limits": {"cpu": "8"}}, {"limits": {"cpu": "8"}, "requests": {"cpu": "8"}}),
        (
            {"limits": {"cpu": "8"}, "requests": {"cpu": "4"}},
            {"limits": {"cpu": "8"}, "requests": {"cpu": "4"}},
        ),
        (
            {"requests": {"memory": "1Gi"}},
            {"limits": {"cpu": "2"}, "requests": {"cpu": "500m", "memory": "1Gi"}},
        ),
        (
            {"claims": [{"name": "gpu"}]},
            {
                "claims": [{"name": "gpu"}],
                "limits": {"cpu": "2"},
                "requests": {"cpu": "500m"},
            },
        ),
    ],
)
def test_what_a_container_does_not_say_is_filled_in(resources: Object, expected: Object) -> None:
    assert filled(resources, CPU) == expected


@pytest.mark.parametrize(
    ("item", "limits", "requests"),
    [
        ({"max": {"cpu": "4"}}, {"cpu": "4"}, {"cpu": "4"}),
        ({"max": {"cpu": "4"}, "default": {"cpu": "2"}}, {"cpu": "2"}, {"cpu": "2"}),
        ({"min": {"cpu": "1"}, "default": {"cpu": "2"}}, {"cpu": "2"}, {"cpu": "2"}),
        ({"max": {"cpu": "4"}, "defaultRequest": {"cpu": "1"}}, {"cpu": "4"}, {"cpu": "1"}),
    ],
)
def test_bounds_stand_in_for_defaults(item: Object, limits: Object, requests: Object) -> None:
    assert filled({}, limit_range(**item)) == {"limits": limits, "requests": requests}


@pytest.mark.parametrize(
    "item", [{"min": {"cpu": "1"}}, {"min": {"cpu": "1"}, "defaultRequest": None}]
)
def test_a_least_amount_is_asked_for_without_a_limit(item: Object) -> None:
    assert filled({}, limit_range(**item)) == {"requests": {"cpu": "1"}}


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
def test_ranges_for_other_things_than_containers_have_no_defaults(kind: str) -> None:
    assert filled({}, limit_range(type=kind, max={"cpu": "4"}, min={"cpu": "1"})) == {}


def test_ranges_that_say_nothing_change_nothing() -> None:
    spec = {"containers": [{"name": "main"}]}
    assert with_defaults(spec, [{"metadata": {"name": "empty"}}, limit_range()]) is spec


def test_init_containers_are_filled_as_well() -> None:
    spec = {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]}
    resources = {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}}
    assert with_defaults(spec, [CPU]) == {
        "containers": [{"name": "main", "resources": resources}],
        "initContainers": [{"name": "first", "resources": resources}],
    }


def test_of_several_ranges_the_first_by_name_stands_resource_by_resource() -> None:
    ranges = (
        limit_range("b", default={"cpu": "2", "memory": "2Gi"}),
        limit_range("a", default={"cpu": "1"}),
        limit_range("c", default={"memory": "3Gi"}),
    )
    amounts = {"cpu": "1", "memory": "2Gi"}
    assert filled({}, *ranges) == {"limits": amounts, "requests": amounts}


def test_a_limit_of_the_whole_pod_is_its_request_before_containers_are_filled() -> None:
    spec = {"containers": [{"name": "main"}], "resources": {"limits": {"cpu": "8"}}}
    assert str(pod_requests(with_defaults(spec, [CPU]))["cpu"]) == "8"


def test_a_pod_that_asks_as_a_whole_is_not_asked_for_its_overhead_twice() -> None:
    spec = {
        "containers": [{"name": "main"}],
        "resources": {"limits": {"cpu": "8"}},
        "overhead": {"cpu": "1"},
    }
    assert str(pod_requests(with_defaults(spec, [CPU]))["cpu"]) == "9"


def test_what_a_pod_asks_for_as_a_whole_stays() -> None:
    resources = {"limits": {"cpu": "8"}, "requests": {"cpu": "6", "memory": "1Gi"}}
    spec = {"containers": [{"name": "main"}], "resources": resources}
    assert with_defaults(spec, [CPU])["resources"] == resources


def test_the_pod_and_the_ranges_are_left_as_they_are() -> None:
    spec = {
        "containers": [{"name": "main", "resources": {"limits": {"memory": "1Gi"}}}],
        "resources": {"limits": {"memory": "2Gi"}},
    }
    before = deepcopy((spec, CPU))
    with_defaults(spec, [CPU])
    assert (spec, CPU) == before
