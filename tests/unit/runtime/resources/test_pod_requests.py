from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.objects.quantity import ZERO, QuantityError
from kftrainer.runtime.resources.pod_requests import merge_resources, pod_requests

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


def with_requests(
    restart: str | None = None, limits: Object | None = None, **requests: Any
) -> Object:
    """A container with these requests."""
    policy = {"restartPolicy": restart} if restart else {}
    return {**policy, "resources": {"requests": requests, "limits": limits}}


def requests_of(*containers: Object, **spec: Any) -> dict[str, str]:
    found = pod_requests({"containers": [*containers], **spec})
    return {name: str(amount) for name, amount in found.items()}


def test_requests_of_containers_are_added() -> None:
    assert requests_of(with_requests(cpu="1", memory="1Gi"), with_requests(cpu="500m")) == {
        "cpu": "1500m",
        "memory": "1Gi",
    }


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": None, "initContainers": None, "resources": None, "overhead": None},
        {"containers": [{}, {"resources": None}, {"resources": {"limits": None}}]},
    ],
)
def test_pod_without_resources_has_no_requests(spec: Object) -> None:
    assert pod_requests(spec) == {}


def test_missing_request_defaults_to_the_limit() -> None:
    assert requests_of(with_requests(limits={"cpu": "4", GPU: 8}, cpu=1)) == {"cpu": "1", GPU: "8"}
    assert requests_of(with_requests(limits={"cpu": "4"}, cpu="0")) == {"cpu": "0"}


def test_largest_init_container_counts_if_it_exceeds_the_containers() -> None:
    init = [with_requests(cpu="3", memory="1Gi"), with_requests(cpu="2", memory="4Gi")]
    assert requests_of(with_requests(cpu="1", memory="2Gi"), initContainers=init) == {
        "cpu": "3",
        "memory": "4Gi",
    }


def test_sidecar_is_added_to_later_containers() -> None:
    sidecar = with_requests("Always", cpu="1")
    assert requests_of(with_requests(cpu="2"), initContainers=[sidecar]) == {"cpu": "3"}
    assert requests_of(
        with_requests(cpu="2"), initContainers=[sidecar, with_requests(cpu="5")]
    ) == {"cpu": "6"}
    assert requests_of(
        with_requests(cpu="2"), initContainers=[with_requests(cpu="5"), sidecar]
    ) == {"cpu": "5"}
    assert requests_of(
        with_requests(), initContainers=[sidecar, sidecar, with_requests(cpu="5")]
    ) == {"cpu": "7"}


def test_pod_level_requests_replace_those_of_containers() -> None:
    whole = {"requests": {"cpu": "8", "hugepages-2Mi": "8Mi", GPU: "8"}}
    assert requests_of(with_requests(cpu="1", memory="1Gi"), resources=whole) == {
        "cpu": "8",
        "memory": "1Gi",
        "hugepages-2Mi": "8Mi",
    }


def test_pod_level_limit_counts_where_no_container_has_a_request() -> None:
    whole = {"limits": {"cpu": "8", "memory": "8Gi", "hugepages-2Mi": "8Mi"}}
    pod = with_requests(limits={"hugepages-2Mi": "2Mi"}, cpu="0")
    assert requests_of(pod, resources=whole) == {
        "cpu": "0",
        "memory": "8Gi",
        "hugepages-2Mi": "8Mi",
    }


def test_overhead_is_added() -> None:
    overhead = {"cpu": "250m", "memory": "64Mi"}
    whole = {"requests": {"cpu": "2"}}
    assert requests_of(with_requests(cpu="1"), resources=whole, overhead=overhead) == {
        "cpu": "2250m",
        "memory": "64Mi",
    }


def test_amounts_are_rounded_up_to_thousandths() -> None:
    assert requests_of(with_requests(cpu="100u"), with_requests(cpu="100u")) == {"cpu": "2m"}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"containers": [{}, with_requests(cpu="x")]}, "containers[1].resources.requests[cpu]"),
        (
            {"containers": [with_requests(limits={GPU: "x"})]},
            f"containers[0].resources.limits[{GPU}]",
        ),
        (
            {"initContainers": [with_requests(cpu=True)]},
            "initContainers[0].resources.requests[cpu]",
        ),
        ({"resources": {"limits": {"cpu": "x"}}}, "resources.limits[cpu]"),
        ({"overhead": {"cpu": "x"}}, "overhead[cpu]"),
    ],
)
def test_error_has_the_path_in_the_pod_spec(spec: Object, path: str) -> None:
    with pytest.raises(QuantityError) as raised:
        pod_requests(spec)
    assert raised.value.path == path


def resources(limits: Object | None = None, requests: Object | None = None) -> Object:
    halves = {"limits": limits, "requests": requests}
    return {half: amounts for half, amounts in halves.items() if amounts is not None}


MERGES: dict[str, tuple[Object, Object, Object]] = {
    "what only one of them has stays": (
        resources({"cpu": "4"}, {"memory": "1Gi"}),
        resources({GPU: 2}, {"cpu": "1"}),
        resources({"cpu": "4", GPU: 2}, {"memory": "1Gi", "cpu": "1"}),
    ),
    "the override wins in both halves": (
        resources({"cpu": "4"}, {"cpu": "2"}),
        resources({"cpu": 3}, {"cpu": 0.5}),
        resources({"cpu": 3}, {"cpu": 0.5}),
    ),
    "a limit below the request takes it along": (
        resources({"cpu": "4"}, {"cpu": "4"}),
        resources({"cpu": "1500m"}),
        resources({"cpu": "1500m"}, {"cpu": "1500m"}),
    ),
    "a limit above the request leaves it": (
        resources({"cpu": "4"}, {"cpu": "2"}),
        resources({"cpu": "2000m"}),
        resources({"cpu": "2000m"}, {"cpu": "2"}),
    ),
    "a request above the limit takes it along": (
        resources({"memory": "1Gi"}),
        resources(None, {"memory": "1.5Gi"}),
        resources({"memory": "1.5Gi"}, {"memory": "1.5Gi"}),
    ),
    "a request below the limit leaves it": (
        resources({"memory": "1Gi"}, {"memory": "1Gi"}),
        resources(None, {"memory": "1M"}),
        resources({"memory": "1Gi"}, {"memory": "1M"}),
    ),
    "fewer devices": (
        resources({GPU: 4}, {GPU: 4}),
        resources({GPU: 2}),
        resources({GPU: 2}),
    ),
    "more devices": (
        resources({GPU: 4, "cpu": 1}, {GPU: 4, "cpu": 1}),
        resources({GPU: 8}),
        resources({GPU: 8, "cpu": 1}, {"cpu": 1}),
    ),
    "fewer devices, as a request": (
        resources({GPU: 4}),
        resources(None, {GPU: 2}),
        resources({GPU: 2}, {GPU: 2}),
    ),
    "huge pages": (
        resources({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"}),
        resources({"hugepages-2Mi": "8Mi"}),
        resources({"hugepages-2Mi": "8Mi"}),
    ),
    "kubernetes' own may differ": (
        resources({"kubernetes.io/batteries": 4}, {"kubernetes.io/batteries": 1}),
        resources({"kubernetes.io/batteries": 8}),
        resources({"kubernetes.io/batteries": 8}, {"kubernetes.io/batteries": 1}),
    ),
    "claims by name": (
        {"claims": [{"name": "a"}, {"name": "b"}]},
        {"claims": [{"name": "c"}, {"name": "a", "request": "one"}]},
        {"claims": [{"name": "a", "request": "one"}, {"name": "b"}, {"name": "c"}]},
    ),
    "claims of one": ({"claims": [{"name": "a"}]}, {}, {"claims": [{"name": "a"}]}),
    "keys that we do not know": ({"new": [1], "old": 1}, {"new": [2]}, {"new": [2], "old": 1}),
    "nulls": ({"limits": {"cpu": 1}, "requests": None}, {"limits": None}, {"limits": {"cpu": 1}}),
}


@pytest.mark.parametrize(("base", "override", "merged"), MERGES.values(), ids=MERGES.keys())
def test_resources_are_merged(base: Object, override: Object, merged: Object) -> None:
    before = deepcopy((base, override))
    assert merge_resources(base, override) == merged
    assert (base, override) == before


def test_merging_empty_resources_has_no_effect() -> None:
    some = resources({"cpu": 1}, {"cpu": 0.5})
    assert merge_resources(some, None) == merge_resources(None, some) == some
    assert merge_resources(None, None) == {}


def test_invalid_amounts_are_an_error_with_a_path() -> None:
    with pytest.raises(QuantityError) as raised:
        merge_resources(resources({"cpu": 1}), resources(None, {"cpu": "x"}))
    assert raised.value.path == "requests[cpu]"


amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", GPU, "hugepages-2Mi"]),
    st.sampled_from(["0", "1", "2", "500m", 4, "1Gi"]),
)
halves = st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})


@given(base=halves, override=halves)
def test_merged_resources_contain_the_override_and_the_rest(base: Object, override: Object) -> None:
    merged = merge_resources(base, override)
    for half, given_amounts in override.items():
        assert {**merged.get(half, {}), **given_amounts} == merged.get(half, {})
    requested = pod_requests({"containers": [{"resources": merged}]})
    before = [pod_requests({"containers": [{"resources": each}]}) for each in (base, override)]
    assert requested.keys() == before[0].keys() | before[1].keys()


@given(base=halves, override=halves)
def test_merging_is_idempotent(base: Object, override: Object) -> None:
    once = merge_resources(base, override)
    assert merge_resources(once, override) == once


@given(st.lists(halves), st.lists(st.tuples(halves, st.booleans())), halves)
def test_pod_requests_are_at_least_those_of_each_container(
    containers: list[Object], init: list[tuple[Object, bool]], overhead: Object
) -> None:
    each = [{"resources": one} for one in containers]
    first = [
        {"resources": one, **({"restartPolicy": "Always"} if sidecar else {})}
        for one, sidecar in init
    ]
    spec = {
        "containers": each,
        "initContainers": first,
        "overhead": overhead.get("requests"),
    }
    requested = pod_requests(spec)
    for container in (*each, *first):
        for name, amount in pod_requests({"containers": [container]}).items():
            assert amount <= requested.get(name, ZERO)
