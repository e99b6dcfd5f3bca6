"""Names that JobSet would reject; `tests/e2e/test_jobset_names.py` tests the table with JobSet."""

import string
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kftrainer.runtime.validation.jobset_names import jobset_rejections
from kftrainer.runtime.validation.names import name_limit
from tests.support.golden import CASES
from tests.support.jobsets import ADMITTED, REJECTED, TOO_LONG, Case, job, spec_of
from tests.support.runtimes import SHIPPED


def rejections(spec: Any) -> list[tuple[str, str]]:
    return [*map(tuple, jobset_rejections(spec))]


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case.title)
def test_invalid_name_is_rejected_with_its_path(case: Case) -> None:
    assert rejections(case.spec) == case.rejections


@pytest.mark.parametrize("case", [*ADMITTED, *TOO_LONG], ids=lambda case: case.title)
def test_valid_names_are_not_rejected(case: Case) -> None:
    assert rejections(case.spec) == []


def limit(case: Case) -> int:
    """Return the maximum length of the TrainJob's name."""
    jobs = case.spec["replicatedJobs"]
    sizes = [(job.get("replicas", 1), job["template"]["spec"]["completions"]) for job in jobs]
    return name_limit(case.spec, sizes).characters


@pytest.mark.parametrize("case", TOO_LONG, ids=lambda case: case.title)
def test_derived_name_of_64_characters_exceeds_the_limit_by_one(case: Case) -> None:
    assert limit(case) == len(case.name) - 1


@pytest.mark.parametrize("case", ADMITTED, ids=lambda case: case.title)
def test_derived_names_of_valid_jobsets_are_within_the_limit(case: Case) -> None:
    assert limit(case) >= len(case.name)


def test_rejection_is_formatted_as_a_field_error() -> None:
    [rejection] = jobset_rejections(spec_of(job(groupName="")))
    assert str(rejection).startswith("spec.replicatedJobs[0].groupName: a DNS-1035 label must ")


@pytest.mark.parametrize("document", SHIPPED, ids=lambda each: each["metadata"]["name"])
def test_names_of_bundled_runtimes_are_valid(document: dict[str, Any]) -> None:
    assert rejections(document["spec"]["template"]["spec"]) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names_in_plans_of_golden_cases_are_valid(case: Any) -> None:
    for planned in case.planned():
        if planned.resource.kind == "JobSet":
            assert rejections(planned.manifest["spec"]) == []


FIELDS = sorted(
    {
        "replicatedJobs", "name", "template", "spec", "metadata", "groupName", "dependsOn",
        "volumes", "successPolicy", "targetReplicatedJobs", "failurePolicy", "rules",
        "coordinator", "replicatedJob", "volumeClaimPolicies", "templates",
    }
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(string.printable + "ü\ud800", max_size=5)
)
ANY_VALUE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(FIELDS), ANY_VALUE, max_size=8))
@example({"replicatedJobs": [None, [], {"groupName": "\ud800", "dependsOn": [None, {}]}]})
@example({"coordinator": {"replicatedJob": 1}, "volumeClaimPolicies": [{"templates": [[]]}]})
def test_invalid_specs_do_not_raise(spec: dict[str, Any]) -> None:
    assert all(path.startswith("spec") and message for path, message in rejections(spec))


def seconds(volumes: int) -> float:
    """Return the CPU time for a spec with this number of claims and volumes; the best of three."""
    pod = {"volumes": [{"name": f"c{number}"} for number in range(volumes)]}
    spec = {
        "replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}],
        "volumeClaimPolicies": [
            {"templates": [{"metadata": {"name": f"c{number}"}} for number in range(volumes)]}
        ],
    }

    def measure() -> float:
        start = process_time()
        assert len(rejections(spec)) == volumes
        return process_time() - start

    return min(measure() for _ in range(3))


def test_time_is_proportional_to_the_number_of_claims() -> None:
    assert seconds(3200) < 3 * 8 * seconds(400)  # 8 x 8 if it were quadratic
