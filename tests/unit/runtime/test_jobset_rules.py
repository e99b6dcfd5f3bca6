"""What JobSet would refuse; `tests/e2e/test_jobset_rules.py` asks JobSet itself about the table."""

import string
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kftrainer.runtime.jobset_rules import refusals
from tests.support.golden import CASES
from tests.support.jobsets import ADMITTED, REFUSED, Case, claims, coordinated, job, spec_of
from tests.support.runtimes import SHIPPED


def said(spec: Any, name: str | None = "train") -> list[tuple[str, str]]:
    return [(refusal.path, refusal.text) for refusal in refusals(spec, name=name)]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.what)
def test_a_jobset_is_refused_for_each_reason_where_it_is(case: Case) -> None:
    assert said(case.spec, case.name) == case.refusals


@pytest.mark.parametrize("case", ADMITTED, ids=lambda case: case.what)
def test_nothing_is_said_about_a_jobset_that_is_fine(case: Case) -> None:
    assert said(case.spec, case.name) == []


@pytest.mark.parametrize("case", [*REFUSED, *ADMITTED], ids=lambda case: case.what)
def test_of_a_template_only_what_no_trainjob_can_change_is_told(case: Case) -> None:
    assert said(case.spec, None) == (list(case.refusals) if case.without_name else [])


def test_the_names_of_claims_that_no_trainjob_has_yet_named_can_be_long() -> None:
    spec = spec_of(volumeClaimPolicies=claims("x" * 63))
    assert [path for path, _ in said(spec, None)] == ["spec.replicatedJobs"]  # nothing mounts it


def test_a_coordinator_is_refused_for_where_it_is_and_for_its_address() -> None:
    found = said(coordinated(podIndex=5), "x" * 40)
    assert [path for path, _ in found] == ["spec.coordinator.podIndex", "spec.coordinator"]


def test_a_refusal_reads_as_errors_of_fields_do() -> None:
    [refusal] = refusals(spec_of(job(groupName="")), name=None)
    assert str(refusal).startswith("spec.replicatedJobs[0].groupName: a DNS-1035 label must ")


@pytest.mark.parametrize("document", SHIPPED, ids=lambda each: each["metadata"]["name"])
def test_jobset_has_nothing_against_the_shipped_runtimes(document: dict[str, Any]) -> None:
    assert said(document["spec"]["template"]["spec"], None) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_jobset_has_nothing_against_what_golden_cases_plan(case: Any) -> None:
    for planned in case.planned():
        if planned.resource.kind == "JobSet":
            assert said(planned.manifest["spec"], planned.manifest["metadata"]["name"]) == []


FIELDS = sorted(
    {
        "replicatedJobs", "name", "template", "spec", "metadata", "replicas", "groupName",
        "dependsOn", "parallelism", "completions", "completionMode", "containers", "volumes",
        "initContainers", "volumeMounts", "network", "subdomain", "managedBy", "startupPolicy",
        "startupPolicyOrder", "successPolicy", "targetReplicatedJobs", "failurePolicy", "rules",
        "action", "onJobFailureReasons", "restartStrategy", "coordinator", "replicatedJob",
        "jobIndex", "podIndex", "volumeClaimPolicies", "templates",
    }
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(string.printable + "ü\ud800", max_size=5)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=8), st.none() | st.text())
@example({"replicatedJobs": [None, [], {"template": {"spec": {"parallelism": float("inf")}}}]}, "a")
@example({"coordinator": {"jobIndex": float("nan"), "podIndex": "1"}, "managedBy": "\ud800"}, None)
def test_whatever_it_is_given_it_does_not_raise(spec: dict[str, Any], name: str | None) -> None:
    assert all(path.startswith("spec") and text for path, text in said(spec, name))


def seconds(volumes: int) -> float:
    """CPU that a spec with so many claims and volumes takes; the best of three."""
    pod = {"volumes": [{"name": f"v{number}"} for number in range(volumes)]}
    spec = {
        "replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}],
        "volumeClaimPolicies": [
            {"templates": [{"metadata": {"name": f"c{number}"}} for number in range(volumes)]}
        ],
    }

    def look() -> float:
        start = process_time()
        assert len(said(spec, None)) == volumes
        return process_time() - start

    return min(look() for _ in range(3))


def test_many_claims_take_no_more_than_their_share_of_time() -> None:
    assert seconds(3200) < 3 * 8 * seconds(400)  # 8 x 8 if it were quadratic
