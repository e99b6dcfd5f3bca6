"""Ineffective overrides cause a warning with their path; effective ones do not."""

from typing import Any

import pytest

from kftrainer.runtime.validation.ineffective_overrides import MOST_COMPARED, MOST_MERGED, MOST_WORK
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import findings, job_on

MOUNTED = [{"name": "data", "mountPath": "/data"}]


def document() -> Object:
    node = replicated_job(volumeMounts=MOUNTED)
    pod = node["template"]["spec"]["template"]
    pod["metadata"] = {"labels": {"team": "vision"}}
    pod["spec"] |= {
        "serviceAccountName": "me",
        "nodeSelector": {"disk": "fast", "zone": "a"},
        "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1024Mi"}}],
    }
    return runtime(jobs=[node, replicated_job("other", None)], mlPolicy={})


def override(*targets: str, metadata: Object | None = None, **spec: Any) -> Object:
    entry: Object = {"targetJobs": [{"name": each} for each in targets or ("node",)]}
    return entry | {"spec": spec} | ({"metadata": metadata} if metadata else {})


def warned(*overrides: Object, dialect: str = "podTemplateOverrides") -> list[str]:
    on = document()
    found = findings(job_on(on, **{dialect: list(overrides)}), on)
    assert found.errors == []
    return found.warnings


def idle(index: int) -> str:
    return (
        f"spec.podTemplateOverrides[{index}] has no effect: "
        "the pods of its jobs already have these values"
    )


def undone(index: int) -> str:
    return (
        f"spec.podTemplateOverrides[{index}] has no effect: "
        "later overrides replace all of its values"
    )


@pytest.mark.parametrize(
    "same",
    [
        override(),
        override(serviceAccountName="me"),
        override(nodeSelector={"disk": "fast"}),
        override(metadata={"labels": {"team": "vision"}}),
        override(containers=[{"name": "node", "volumeMounts": MOUNTED}]),
        override(volumes=[{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}]),
        override("node", "other"),
    ],
)
def test_override_with_existing_values_is_reported(same: Object) -> None:
    assert warned(same) == [idle(0)]


@pytest.mark.parametrize(
    "other",
    [
        override(serviceAccountName="you"),
        override(nodeSelector={"disk": "slow"}),
        override(metadata={"annotations": {"team": "vision"}}),
        override(tolerations=[{"operator": "Exists"}]),
        override("node", "other", serviceAccountName="me"),  # new for one of the two
    ],
)
def test_override_that_changes_a_value_is_not_reported(other: Object) -> None:
    assert warned(other) == []


def test_second_of_two_equal_overrides_is_reported() -> None:
    duplicate = override(serviceAccountName="you")
    assert warned(duplicate, duplicate) == [idle(1)]


def test_override_replaced_by_a_later_one_is_reported() -> None:
    first, last = override(serviceAccountName="you"), override(serviceAccountName="they")
    more = override(serviceAccountName="we", tolerations=[{"operator": "Exists"}])
    assert warned(first, last) == [undone(0)]
    assert warned(more, last) == []
    assert warned(first, override(serviceAccountName="me"), last) == [undone(0), undone(1)]


def test_legacy_field_name_is_used_in_the_warning() -> None:
    legacy = {"targetJobs": [{"name": "node"}], "serviceAccountName": "me"}
    (warning,) = warned(legacy, dialect="podSpecOverrides")
    assert warning.startswith("spec.podSpecOverrides[0] has no effect")


def test_overrides_beyond_a_number_are_not_compared() -> None:
    def many(count: int) -> list[Object]:
        return [override(serviceAccountName=f"user-{index}") for index in range(count)]

    assert warned(*many(MOST_COMPARED)) == [undone(index) for index in range(MOST_COMPARED - 1)]
    assert warned(*many(MOST_COMPARED + 1)) == []
    duplicates = many(MOST_MERGED - 1)
    assert warned(*duplicates, duplicates[-1]) == [idle(MOST_MERGED - 1)]
    assert warned(*duplicates, duplicates[-1], duplicates[-1]) == []


def test_very_large_overrides_are_not_compared() -> None:
    def found_warnings(size: int) -> list[str]:
        first, last = (
            override(metadata={"annotations": {"note": note}}) for note in ("x" * size, "y")
        )
        return warned(first, last, override())

    # All three are merged into the job once, and once more for each of the two that change it.
    assert found_warnings(MOST_WORK // 12) == [idle(2), undone(0)]
    assert found_warnings(MOST_WORK // 5) == [idle(2)]
    assert found_warnings(MOST_WORK // 3) == []
