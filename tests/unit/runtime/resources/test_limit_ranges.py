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
def test_missing_resources_of_a_container_get_defaults(resources: Object, expected: Object) -> None:
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
def test_bounds_are_used_as_defaults(item: Object, limits: Object, requests: Object) -> None:
    assert filled({}, limit_range(**item)) == {"limits": limits, "requests": requests}


@pytest.mark.parametrize(
    "item", [{"min": {"cpu": "1"}}, {"min": {"cpu": "1"}, "defaultRequest": None}]
)
def test_minimum_is_the_default_request_without_a_limit(item: Object) -> None:
    assert filled({}, limit_range(**item)) == {"requests": {"cpu": "1"}}


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
def test_limits_of_other_types_have_no_defaults(kind: str) -> None:
    assert filled({}, limit_range(type=kind, max={"cpu": "4"}, min={"cpu": "1"})) == {}


def test_empty_limit_ranges_have_no_effect() -> None:
    spec = {"containers": [{"name": "main"}]}
    assert with_defaults(spec, [{"metadata": {"name": "empty"}}, limit_range()]) is spec


def test_init_containers_get_defaults() -> None:
    spec = {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]}
    resources = {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}}
    assert with_defaults(spec, [CPU]) == {
        "containers": [{"name": "main", "resources": resources}],
        "initContainers": [{"name": "first", "resources": resources}],
    }


def test_first_limit_range_by_name_takes_precedence_per_resource() -> None:
    ranges = (
        limit_range("b", default={"cpu": "2", "memory": "2Gi"}),
        limit_range("a", default={"cpu": "1"}),
        limit_range("c", default={"memory": "3Gi"}),
    )
    amounts = {"cpu": "1", "memory": "2Gi"}
    assert filled({}, *ranges) == {"limits": amounts, "requests": amounts}


def test_pod_level_limit_is_the_request_before_container_defaults() -> None:
    spec = {"containers": [{"name": "main"}], "resources": {"limits": {"cpu": "8"}}}
    assert str(pod_requests(with_defaults(spec, [CPU]))["cpu"]) == "8"


def test_overhead_is_not_added_to_pod_level_requests_twice() -> None:
    spec = {
        "containers": [{"name": "main"}],
        "resources": {"limits": {"cpu": "8"}},
        "overhead": {"cpu": "1"},
    }
    assert str(pod_requests(with_defaults(spec, [CPU]))["cpu"]) == "9"


def test_pod_level_requests_are_kept() -> None:
    resources = {"limits": {"cpu": "8"}, "requests": {"cpu": "6", "memory": "1Gi"}}
    spec = {"containers": [{"name": "main"}], "resources": resources}
    assert with_defaults(spec, [CPU])["resources"] == resources


def test_input_is_not_modified() -> None:
    spec = {
        "containers": [{"name": "main", "resources": {"limits": {"memory": "1Gi"}}}],
        "resources": {"limits": {"memory": "2Gi"}},
    }
    before = deepcopy((spec, CPU))
    with_defaults(spec, [CPU])
    assert (spec, CPU) == before
