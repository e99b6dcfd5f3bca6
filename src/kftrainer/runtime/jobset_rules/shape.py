"""Shape: the part of a JobSet's spec that its webhook validates, with defaults set.

A value of the wrong type or null counts as missing: the API server rejects or defaults it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

INDEXED = "Indexed"
Body = Mapping[str, Any]


class Job(NamedTuple):
    """A replicated job; a tuple because it is the fastest to create, and reviews create many."""

    path: str
    name: str
    group: str
    replicas: int
    parallelism: int
    completions: int | None
    is_indexed: bool
    depends_on: Sequence[str] | None  # names of other jobs; an empty list is not None
    # The following are empty unless there are claims to compare them with.
    volumes: Sequence[str]  # names, in the order of the pod spec
    mounts: frozenset[str]  # names of the volumes that any container mounts


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the failure policy."""

    path: str
    name: str
    action: str
    targets: Sequence[str]
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The position of the coordinator's pod."""

    job: str
    job_index: int
    pod_index: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A template of PersistentVolumeClaims."""

    path: str  # path of its name
    name: str


class Shape(NamedTuple):
    """The part of a JobSet that the rules read."""

    name: str | None  # None for a runtime's template
    jobs: Sequence[Job]
    is_in_order: bool
    subdomain: str
    managed_by: str | None
    success_targets: Sequence[str]
    restart_strategy: str
    rules: Sequence[Rule]
    coordinator: Coordinator | None
    claims: Sequence[Claim]


def shape_of(spec: Body, name: str | None) -> Shape:
    """Return the Shape of a JobSet's spec."""
    policy = _object(spec.get("failurePolicy"))
    order = _object(spec.get("startupPolicy")).get("startupPolicyOrder")
    claims = [*_claims(spec.get("volumeClaimPolicies"))]
    jobs = _objects(spec.get("replicatedJobs"))
    return Shape(
        name=name,
        jobs=[_job(each, index, with_volumes=bool(claims)) for index, each in jobs],
        is_in_order=order == "InOrder",
        subdomain=_text(_object(spec.get("network")).get("subdomain")),
        managed_by=spec["managedBy"] if isinstance(spec.get("managedBy"), str) else None,
        success_targets=_texts(_object(spec.get("successPolicy")).get("targetReplicatedJobs")),
        restart_strategy=_text(policy.get("restartStrategy")),
        rules=[_rule(each, index) for index, each in _objects(policy.get("rules"))],
        coordinator=_coordinator(spec.get("coordinator")),
        claims=claims,
    )


def _job(job: Body, index: int, *, with_volumes: bool) -> Job:
    job_spec = _object(_object(job.get("template")).get("spec"))
    pod = _object(_object(job_spec.get("template")).get("spec")) if with_volumes else {}
    containers = [
        each for field in ("initContainers", "containers") for _, each in _objects(pod.get(field))
    ]
    mounts = (_names(each.get("volumeMounts")) for each in containers)
    mode, awaited = job_spec.get("completionMode"), job.get("dependsOn")
    return Job(
        path=f"spec.replicatedJobs[{index}]",
        name=_text(job.get("name")),
        group=_text(job.get("groupName"), "default"),
        replicas=_number_or(job.get("replicas"), 1),
        parallelism=_number_or(job_spec.get("parallelism"), 1),
        completions=_number(job_spec.get("completions")),
        is_indexed=mode is None or mode == INDEXED,
        depends_on=_names(awaited) if isinstance(awaited, list) else None,
        volumes=_names(pod.get("volumes")),
        mounts=frozenset(name for names in mounts for name in names),
    )


def _rule(rule: Body, index: int) -> Rule:
    return Rule(
        path=f"spec.failurePolicy.rules[{index}]",
        name=_text(rule.get("name")) or f"failurePolicyRule{index}",
        action=_text(rule.get("action")),
        targets=_texts(rule.get("targetReplicatedJobs")),
        reasons=_texts(rule.get("onJobFailureReasons")),
    )


def _coordinator(coordinator: object) -> Coordinator | None:
    if not isinstance(coordinator, Mapping):
        return None
    return Coordinator(
        job=_text(coordinator.get("replicatedJob")),
        job_index=_number_or(coordinator.get("jobIndex"), 0),
        pod_index=_number_or(coordinator.get("podIndex"), 0),
    )


def _claims(policies: object) -> Iterator[Claim]:
    for index, policy in _objects(policies):
        for inner, template in _objects(policy.get("templates")):
            path = f"spec.volumeClaimPolicies[{index}].templates[{inner}].metadata.name"
            yield Claim(path, _text(_object(template.get("metadata")).get("name")))


def _object(value: object) -> Body:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> Sequence[tuple[int, Body]]:
    """Return the objects in a list, with their indices."""
    if not isinstance(value, list):
        return ()
    return [(index, each) for index, each in enumerate(value) if isinstance(each, dict)]


def _text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) else default


def _texts(value: object) -> Sequence[str]:
    return [each for each in (value if isinstance(value, list) else ()) if isinstance(each, str)]


def _names(value: object) -> Sequence[str]:
    return [_text(each.get("name")) for _, each in _objects(value)]


def _number(value: object) -> int | None:
    if type(value) is int:  # the most common case
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value == value // 1 else None


def _number_or(value: object, default: int) -> int:
    number = _number(value)
    return default if number is None else number
