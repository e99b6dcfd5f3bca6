"""JobSets with one invalid name each and JobSet's error messages; and valid JobSets.

`tests/unit/runtime/validation/test_jobset_names.py` compares our rules with this table, and
`tests/e2e/test_jobset_names.py` compares the table with JobSet itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]

NOT_A_LABEL = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
NOT_A_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LONG_POD = "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"
JOBS = "spec.replicatedJobs"
CLAIM_NAME = "spec.volumeClaimPolicies[0].templates[0].metadata.name"


@dataclass(frozen=True, slots=True)
class Case:
    """A JobSet, and the paths and messages of JobSet's errors."""

    title: str
    spec: Body
    rejections: Sequence[tuple[str, str]] = ()
    name: str = "train"


def job(
    name: str = "node", *, pod: Body | None = None, spec: Body | None = None, **fields: Any
) -> Body:
    """A replicated job of two pods."""
    containers = [{"name": "node", "image": "trainer"}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers, **(pod or {})}}
    job_spec = {"parallelism": 2, "completions": 2, "template": template, **(spec or {})}
    job_spec = {field: value for field, value in job_spec.items() if value is not None}
    return {"name": name, "template": {"spec": job_spec}, **fields}


def spec_of(*jobs: Body, **fields: Any) -> Body:
    """The spec of a JobSet of these jobs; of one, unless they are given."""
    return {"replicatedJobs": list(jobs) or [job()], **fields}


def after(*names: str) -> list[Body]:
    return [{"name": name, "status": "Ready"} for name in names]


def rule(action: str = "FailJobSet", name: str = "rule", **fields: Any) -> Body:
    return {"name": name, "action": action, **fields}


def on_failure(*rules: Body, **fields: Any) -> Body:
    return spec_of(failurePolicy={"rules": list(rules), **fields})


def coordinated(jobs: Sequence[Body] = (), **coordinator: Any) -> Body:
    return spec_of(*jobs, coordinator={"replicatedJob": "node", **coordinator})


def claims(*names: str) -> list[Body]:
    claim_spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return [{"templates": [{"metadata": {"name": name}, "spec": claim_spec} for name in names]}]


def mounting(*names: str, **pod: Any) -> Body:
    """A job whose container mounts these."""
    mounts = [{"name": name, "mountPath": f"/mnt/{name}"} for name in names]
    containers = [{"name": "node", "image": "trainer", "volumeMounts": mounts}]
    return job(pod={"containers": containers, **pod})


REJECTED = (
    Case(
        "first job depends on itself",
        spec_of(job(dependsOn=after("node"))),
        [(f"{JOBS}[0].dependsOn", "DependsOn can't be set for the first ReplicatedJob")],
    ),
    Case(
        "first job with an empty dependsOn",
        spec_of(job(dependsOn=[])),
        [(f"{JOBS}[0].dependsOn", "DependsOn can't be set for the first ReplicatedJob")],
    ),
    Case(
        "job depends on a later one",
        spec_of(job("a"), job("b", dependsOn=after("c")), job("c")),
        [(f"{JOBS}[1].dependsOn[0].name", "replicatedJob: b cannot depend on replicatedJob: c")],
    ),
    Case(
        "second dependency does not exist",
        spec_of(job("a"), job("b", dependsOn=after("a", "none"))),
        [(f"{JOBS}[1].dependsOn[1].name", "replicatedJob: b cannot depend on replicatedJob: none")],
    ),
    Case(
        "group in capitals",
        spec_of(job(groupName="Group")),
        [(f"{JOBS}[0].groupName", NOT_A_LABEL)],
    ),
    Case("empty group name", spec_of(job(groupName="")), [(f"{JOBS}[0].groupName", NOT_A_LABEL)]),
    Case(
        "group of 64 characters",
        spec_of(job(groupName="x" * 64)),
        [
            (
                f"{JOBS}[0].groupName",
                ".spec.replicatedJob[].groupName is too long, must be less than 63 characters",
            )
        ],
    ),
    Case(
        "success policy for a missing job",
        spec_of(successPolicy={"operator": "All", "targetReplicatedJobs": ["node", "none"]}),
        [
            (
                "spec.successPolicy.targetReplicatedJobs[1]",
                "invalid replicatedJob name 'none' does not appear in .spec.ReplicatedJobs",
            )
        ],
    ),
    Case(
        "failure policy for a missing job",
        on_failure(rule(targetReplicatedJobs=["none"])),
        [
            (
                "spec.failurePolicy.rules[0].targetReplicatedJobs[0]",
                "invalid replicatedJob name 'none' in failure policy does not appear in "
                ".spec.ReplicatedJobs",
            )
        ],
    ),
    Case(
        "coordinator in a missing job",
        spec_of(coordinator={"replicatedJob": "none"}),
        [("spec.coordinator.replicatedJob", "coordinator replicatedJob none does not exist")],
    ),
    Case(
        "duplicate claim",
        spec_of(mounting("data"), volumeClaimPolicies=claims("data", "data")),
        [
            (
                "spec.volumeClaimPolicies[0].templates[1].metadata.name",
                "names must be unique for VolumeClaimPolicies template",
            )
        ],
    ),
    Case(
        "claim in capitals",
        spec_of(mounting("Data"), volumeClaimPolicies=claims("Data")),
        [(CLAIM_NAME, NOT_A_SUBDOMAIN)],
    ),
    Case(
        "claim and volume of the same name",
        spec_of(
            mounting("data", volumes=[{"name": "a", "emptyDir": {}}, {"name": "data"}]),
            volumeClaimPolicies=claims("data"),
        ),
        [
            (
                f"{JOBS}[0].template.spec.template.spec.volumes[1].name",
                "volume name conflicts with VolumeClaimPolicy template name: data",
            )
        ],
    ),
)

# The name of the TrainJob is one character too long for a name that JobSet derives from it.
TOO_LONG = (
    Case(
        "pod names of 64 characters",
        spec_of(),
        [(f"{JOBS}[0].name", LONG_POD)],
        name="x" * 49,
    ),
    Case(
        "pod names of 64 characters, of many pods",
        spec_of(job(spec={"parallelism": 11, "completions": 11})),
        [(f"{JOBS}[0].name", LONG_POD)],
        name="x" * 48,
    ),
    Case(
        "pod names of 64 characters, of many replicas",
        spec_of(job(replicas=11)),
        [(f"{JOBS}[0].name", LONG_POD)],
        name="x" * 48,
    ),
    Case(
        "coordinator's address of 64 characters",
        coordinated(),
        [
            (
                "spec.coordinator",
                f'spec will lead to invalid label value "{"x" * 27}-node-0-0.{"x" * 27}" for '
                'coordinator label "jobset.sigs.k8s.io/coordinator" (long JobSet / ReplicatedJob / '
                "SubDomain name?): must be no more than 63 bytes",
            )
        ],
        name="x" * 27,
    ),
    Case(
        "claim names of 64 characters",
        spec_of(mounting("x" * 58), volumeClaimPolicies=claims("x" * 58)),
        [(CLAIM_NAME, "VolumeClaimPolicies template name is too long")],
    ),
)

ADMITTED = (
    Case("minimal", spec_of()),
    Case("the longest name of ten pods", spec_of(job(spec={"completions": 10})), name="x" * 48),
    Case("the longest name of ten replicas", spec_of(job(replicas=10)), name="x" * 48),
    Case("later job depends on itself", spec_of(job("a"), job("b", dependsOn=after("a", "b")))),
    Case("empty dependsOn", spec_of(job("a"), job("b", dependsOn=[]))),
    Case("a subdomain of 63 characters", spec_of(network={"subdomain": "x" * 63})),
    Case("no subdomain", spec_of(network={"subdomain": ""})),
    Case("a group of 63 characters", spec_of(job(groupName="x" * 63))),
    Case("no replicas", spec_of(job(replicas=0))),
    Case(
        "success policy",
        spec_of(successPolicy={"operator": "Any", "targetReplicatedJobs": ["node"]}),
    ),
    Case(
        "failure policy",
        on_failure(
            rule(name="x" * 128),
            rule(name="A,b:C_", targetReplicatedJobs=["node"]),
            rule(
                name="b",
                action="RestartJobSet",
                onJobFailureReasons=[
                    "BackoffLimitExceeded",
                    "DeadlineExceeded",
                    "FailedIndexes",
                    "MaxFailedIndexesExceeded",
                    "PodFailurePolicy",
                ],
            ),
            rule("RestartJobSetAndIgnoreMaxRestarts", name=""),
            rule(name=""),
            restartStrategy="BlockingRecreate",
        ),
    ),
    Case("a coordinator in the last pod", coordinated([job(replicas=2)], jobIndex=1, podIndex=1)),
    Case(
        "a coordinator's address of 63 characters",
        {**coordinated(), "network": {"subdomain": "x" * 26}},
        name="x" * 27,
    ),
    Case(
        "a claim that an init container mounts",
        spec_of(
            job(
                pod={
                    "initContainers": [
                        {
                            "name": "fetch",
                            "image": "fetch",
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        }
                    ]
                }
            ),
            volumeClaimPolicies=claims("data"),
        ),
    ),
    Case(
        "a claim of 57 characters",
        spec_of(mounting("x" * 57), volumeClaimPolicies=claims("x" * 57)),
    ),
)
