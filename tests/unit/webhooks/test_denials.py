"""How often which rule was broken: by kind, without dry runs, and never too many series."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.machinery.metrics.bounded_labels import OTHER
from kftrainer.machinery.metrics.text_format import exposition
from kftrainer.machinery.webhook.admission import AdmissionRequest, AdmissionResponse
from kftrainer.runtime.plugins import PLUGIN_RULES
from kftrainer.runtime.validation.rules import Rule
from kftrainer.webhooks.denials import MOST_RULES, Denials
from kftrainer.webhooks.registration import KINDS, webhook_path

JOBS = webhook_path(TRAIN_JOBS)
FAMILY = "kftrainer_admission_denials"


class CountedDenials:
    """A counter, and what it shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.denials = Denials(self.registry)

    def deny(
        self, *rules: str, path: str = JOBS, kind: str = "TrainJob", dry_run: bool = False
    ) -> None:
        request = AdmissionRequest(
            uid="1",
            operation="CREATE",
            group="trainer.kubeflow.org",
            version="v1alpha1",
            kind=kind,
            namespace="team",
            name="demo",
            object={},
            old_object=None,
            dry_run=dry_run,
        )
        self.denials.count(path, request, AdmissionResponse(allowed=False, rules=rules))

    def counts(self) -> dict[tuple[str, str], float]:
        """By kind and rule."""
        [family] = [each for each in self.registry.collect() if each.name == FAMILY]
        return {
            (each.labels["kind"], each.labels["rule"]): each.value
            for each in family.samples
            if each.name == f"{FAMILY}_total"
        }


def test_denied_request_counts_each_violated_rule() -> None:
    counted = CountedDenials()
    counted.deny("runtime-missing")
    counted.deny("name-too-long", "mpi-processes", "runtime-missing")
    assert counted.counts() == {
        ("TrainJob", "runtime-missing"): 2,
        ("TrainJob", "name-too-long"): 1,
        ("TrainJob", "mpi-processes"): 1,
    }
    assert (
        "# HELP kftrainer_admission_denials_total Violated admission rules: a request that "
        "violates several rules counts for each of them. Dry runs do not count.\n"
        "# TYPE kftrainer_admission_denials_total counter\n"
    ) in exposition(counted.registry).decode()


def test_kind_label_is_that_of_the_path() -> None:
    counted = CountedDenials()
    for resource in KINDS:
        counted.deny("schema", path=webhook_path(resource), kind="Anything")
    counted.deny("schema", path="/made/up")
    kinds = (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
    assert counted.counts() == {(each.kind, "schema"): 1 for each in kinds}


def test_dry_runs_do_not_count() -> None:
    counted = CountedDenials()
    counted.deny("schema", dry_run=True)
    assert counted.counts() == {}


@pytest.mark.parametrize(
    "rules",
    [(), ("",), ("no such name",), ('a"b',), ("\ud800",), ("x" * 64,), ("-",), ("a\n",)],
    ids=repr,
)
def test_rule_with_an_invalid_name_counts_as_other(rules: Sequence[str]) -> None:
    counted = CountedDenials()
    counted.deny(*rules)
    assert counted.counts() == {("TrainJob", OTHER): 1}


def test_rules_beyond_the_limit_count_as_other_except_built_in_ones() -> None:
    counted = CountedDenials()
    unknown = [f"acme.com/rule-{number}" for number in range(1000)]
    counted.deny(*unknown)
    rules = {rule for _, rule in counted.counts()}
    assert len(rules) <= MOST_RULES + 1
    assert unknown[0] in rules
    assert counted.counts()["TrainJob", OTHER] == 1
    ours = (*Rule, *PLUGIN_RULES, "timeout", "internal-error")
    counted.deny(*ours)
    counted.deny(unknown[0])
    counts = counted.counts()
    assert {counts["TrainJob", rule] for rule in ours} == {1}
    counted.deny()
    assert counted.counts()["TrainJob", OTHER] == 2, "what names no rule is no other series"
    assert counts["TrainJob", unknown[0]] == 2
    assert len({rule for _, rule in counts}) <= MOST_RULES + 1


@given(st.lists(st.lists(st.text() | st.from_regex("[a-z]{1,3}", fullmatch=True))))
def test_every_denial_is_counted(denials: list[list[str]]) -> None:
    counted = CountedDenials()
    for rules in denials:
        before = sum(counted.counts().values())
        counted.deny(*rules)
        assert 1 <= sum(counted.counts().values()) - before <= max(1, len(rules))
    exposition(counted.registry)
