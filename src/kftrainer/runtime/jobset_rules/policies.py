"""JobSet's rules for success and failure policies and the coordinator."""

import re
from collections.abc import Iterator

from kftrainer.runtime.jobset_rules.naming import label_value_faults, size
from kftrainer.runtime.jobset_rules.refusal import Refusal
from kftrainer.runtime.jobset_rules.shape import Coordinator, Rule, Shape

RESTART_IN_PLACE = "InPlaceRestart"
RESTARTS_OF_JOBS = frozenset({"RestartJob", "RestartJobAndIgnoreMaxRestarts"})
LONGEST_RULE_NAME = 128
RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
REASONS = frozenset(
    {
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "FailedIndexes",
        "MaxFailedIndexesExceeded",
        "PodFailurePolicy",
    }
)
COORDINATOR_LABEL = "jobset.sigs.k8s.io/coordinator"


def policy_refusals(shape: Shape) -> Iterator[Refusal]:
    """Yield rejections of the policies and the coordinator."""
    jobs = {job.name for job in shape.jobs}
    for index, target in enumerate(shape.success_targets):
        if target not in jobs:
            text = f"invalid replicatedJob name '{target}' does not appear in .spec.ReplicatedJobs"
            yield Refusal(f"spec.successPolicy.targetReplicatedJobs[{index}]", text)
    if shape.restart_strategy == RESTART_IN_PLACE:
        text = (
            "InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is "
            "disabled"
        )
        yield Refusal("spec.failurePolicy.restartStrategy", text, gated=True)
    yield from _rules_refusals(shape, jobs)
    if shape.coordinator is not None:
        yield from _coordinator_refusals(shape, shape.coordinator)


def _rules_refusals(shape: Shape, jobs: set[str]) -> Iterator[Refusal]:
    early = next((rule for rule in shape.rules if rule.action in RESTARTS_OF_JOBS), None)
    if early is not None:
        text = (
            "RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed "
            "when RestartJob feature gate is disabled"
        )
        yield Refusal(f"{early.path}.action", text, gated=True)
        return  # JobSet stops here too
    indices: dict[str, list[int]] = {}
    for index, rule in enumerate(shape.rules):
        indices.setdefault(rule.name, []).append(index)
        yield from _rule_refusals(rule, jobs)
    for name, same in indices.items():
        if len(same) > 1:
            listed = " ".join(map(str, same))
            text = (
                f"rule names are not unique, rules with indices [{listed}] all have the same name "
                f"'{name}'"
            )
            yield Refusal("spec.failurePolicy.rules", text)


def _rule_refusals(rule: Rule, jobs: set[str]) -> Iterator[Refusal]:
    if size(rule.name) > LONGEST_RULE_NAME:
        text = (
            f"invalid failure policy rule name of length {size(rule.name)}, the rule name must be "
            f"at least 1 characters long and at most {LONGEST_RULE_NAME} characters long"
        )
        yield Refusal(f"{rule.path}.name", text)
    if not RULE_NAME.fullmatch(rule.name):
        text = (
            f"invalid failure policy rule name '{rule.name}', a failure policy rule name must "
            "start with an alphabetic character, optionally followed by a string of alphanumeric "
            "characters or '_,:', and must end with an alphanumeric character or '_'"
        )
        yield Refusal(f"{rule.path}.name", text)
    for index, target in enumerate(rule.targets):
        if target not in jobs:
            text = (
                f"invalid replicatedJob name '{target}' in failure policy does not appear in "
                ".spec.ReplicatedJobs"
            )
            yield Refusal(f"{rule.path}.targetReplicatedJobs[{index}]", text)
    for index, reason in enumerate(rule.reasons):
        if reason not in REASONS:
            text = (
                f"invalid job failure reason '{reason}' in failure policy is not a recognized job "
                "failure reason"
            )
            yield Refusal(f"{rule.path}.onJobFailureReasons[{index}]", text)


def _coordinator_refusals(shape: Shape, coordinator: Coordinator) -> Iterator[Refusal]:
    yield from _misplaced(shape, coordinator)
    if shape.name is not None:
        yield from _address_refusals(shape.name, shape.subdomain, coordinator)


def _misplaced(shape: Shape, coordinator: Coordinator) -> Iterator[Refusal]:
    """Yield why the coordinator's pod does not exist; like JobSet, only the first reason."""
    path = "spec.coordinator"
    job = next((each for each in shape.jobs if each.name == coordinator.job), None)
    if job is None:
        text = f"coordinator replicatedJob {coordinator.job} does not exist"
        yield Refusal(f"{path}.replicatedJob", text)
        return
    if not 0 <= coordinator.job_index < job.replicas:
        index = coordinator.job_index
        text = f"coordinator job index {index} is invalid for replicatedJob {job.name}"
        yield Refusal(f"{path}.jobIndex", text)
        return
    # The number of pods depends on the TrainJob, so it is not known for a template.
    is_counted = shape.name is not None
    index = coordinator.pod_index
    if not job.is_indexed or (is_counted and job.completions is None):
        text = (
            "job for coordinator pod must be indexed completion mode, and completions number must "
            "be set"
        )
        yield Refusal(f"{path}.replicatedJob", text)
    elif index < 0 or (is_counted and index >= (job.completions or 0)):
        text = (
            f"coordinator pod index {index} is invalid for replicatedJob {job.name} job index "
            f"{coordinator.job_index}"
        )
        yield Refusal(f"{path}.podIndex", text)


def _address_refusals(name: str, subdomain: str, coordinator: Coordinator) -> Iterator[Refusal]:
    pod = f"{name}-{coordinator.job}-{coordinator.job_index}-{coordinator.pod_index}"
    address = f"{pod}.{subdomain or name}"
    if faults := [*label_value_faults(address)]:
        text = (
            f'spec will lead to invalid label value "{address}" for coordinator label '
            f'"{COORDINATOR_LABEL}" (long JobSet / ReplicatedJob / SubDomain name?): '
            f"{', '.join(faults)}"
        )
        yield Refusal("spec.coordinator", text)
