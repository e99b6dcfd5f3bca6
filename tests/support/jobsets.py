"""JobSets that are each wrong in one way, and what JobSet says about them; and some that are not.

`tests/unit/runtime/test_jobset_rules.py` holds our rules to this table, and
`tests/e2e/test_jobset_rules.py` holds the table to JobSet itself.
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
LONG_JOB = "JobSet name is too long, job names generated for this JobSet will exceed 63 characters"
LONG_POD = "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"
NO_INDEX = (
    "job for coordinator pod must be indexed completion mode, and completions number must be set"
)
RULE_NAME = (
    "a failure policy rule name must start with an alphabetic character, optionally followed by a "
    "string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'"
)
RESTART_JOB = (
    "RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed when "
    "RestartJob feature gate is disabled"
)
JOBS = "spec.replicatedJobs"
CLAIM_NAME = "spec.volumeClaimPolicies[0].templates[0].metadata.name"
MANY = 2**31 - 1
IN_ORDER = {"startupPolicyOrder": "InOrder"}


@dataclass(frozen=True, slots=True)
class Case:
    """A JobSet, and where and why it is refused."""

    what: str
    spec: Body
    refusals: Sequence[tuple[str, str]] = ()
    name: str = "train"
    without_name: bool = True  # whether a runtime with this template would be told the same


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


REFUSED = (
    Case(
        "restarts in place",
        on_failure(restartStrategy="InPlaceRestart"),
        [
            (
                "spec.failurePolicy.restartStrategy",
                "InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is "
                "disabled",
            )
        ],
    ),
    Case(
        "the first job waits for itself",
        spec_of(job(dependsOn=after("node"))),
        [(f"{JOBS}[0].dependsOn", "DependsOn can't be set for the first ReplicatedJob")],
    ),
    Case(
        "the first job waits for none",
        spec_of(job(dependsOn=[])),
        [(f"{JOBS}[0].dependsOn", "DependsOn can't be set for the first ReplicatedJob")],
    ),
    Case(
        "jobs start in order, and one waits for none",
        spec_of(job("a"), job("b", dependsOn=[]), startupPolicy=IN_ORDER),
        [("spec", "StartupPolicy and DependsOn APIs are mutually exclusive")],
    ),
    Case(
        "a job waits for a later one",
        spec_of(job("a"), job("b", dependsOn=after("c")), job("c")),
        [(f"{JOBS}[1].dependsOn[0].name", "replicatedJob: b cannot depend on replicatedJob: c")],
    ),
    Case(
        "the second of those a job waits for is not there",
        spec_of(job("a"), job("b", dependsOn=after("a", "none"))),
        [(f"{JOBS}[1].dependsOn[1].name", "replicatedJob: b cannot depend on replicatedJob: none")],
    ),
    Case(
        "jobs start in order and wait for each other",
        spec_of(
            job("a"),
            job("b", dependsOn=after("a")),
            startupPolicy=IN_ORDER,
        ),
        [("spec", "StartupPolicy and DependsOn APIs are mutually exclusive")],
    ),
    Case(
        "subdomain in capitals",
        spec_of(network={"subdomain": "Workers"}),
        [
            ("spec.network.subdomain", NOT_A_SUBDOMAIN),
            ("spec.network.subdomain", NOT_A_LABEL),
        ],
    ),
    Case(
        "subdomain that is a host name but no label",
        spec_of(network={"subdomain": "1.workers"}),
        [("spec.network.subdomain", NOT_A_LABEL)],
    ),
    Case(
        "subdomain of 64 characters",
        spec_of(network={"subdomain": "x" * 64}),
        [
            (
                "spec.network.subdomain",
                ".spec.network.subdomain is too long, must be less than 63 characters",
            )
        ],
    ),
    Case(
        "subdomain of 254 characters",
        spec_of(network={"subdomain": "x" * 254}),
        [
            ("spec.network.subdomain", "must be no more than 253 characters"),
            (
                "spec.network.subdomain",
                ".spec.network.subdomain is too long, must be less than 63 characters",
            ),
        ],
    ),
    Case(
        "manager without a domain",
        spec_of(managedBy="kueue"),
        [("spec.managedBy", 'must be a domain-prefixed path (such as "acme.io/foo")')],
    ),
    Case(
        "manager of a domain only",
        spec_of(managedBy="acme.io/"),
        [("spec.managedBy", 'must be a domain-prefixed path (such as "acme.io/foo")')],
    ),
    Case("manager that is nobody", spec_of(managedBy=""), [("spec.managedBy", "Required value")]),
    Case(
        "manager of no domain",
        spec_of(managedBy="ACME/foo"),
        [("spec.managedBy", NOT_A_SUBDOMAIN)],
    ),
    Case(
        "manager with a space",
        spec_of(managedBy="acme.io/a b"),
        [
            (
                "spec.managedBy",
                "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
            )
        ],
    ),
    Case(
        "manager of 64 characters",
        spec_of(managedBy=f"acme.io/{'x' * 56}"),
        [("spec.managedBy", "may not be more than 63 bytes")],
    ),
    Case(
        "too many pods",
        spec_of(job(replicas=2, spec={"parallelism": MANY, "completions": 2})),
        [
            (
                f"{JOBS}[0]",
                "the product of replicas and parallelism must not exceed 2147483647 for "
                "replicatedJob 'node'",
            )
        ],
        without_name=False,
    ),
    Case(
        "group in capitals",
        spec_of(job(groupName="Group")),
        [(f"{JOBS}[0].groupName", NOT_A_LABEL)],
    ),
    Case(
        "group without a name", spec_of(job(groupName="")), [(f"{JOBS}[0].groupName", NOT_A_LABEL)]
    ),
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
        "job names of 64 characters",
        spec_of(job(spec={"completionMode": "NonIndexed"})),
        [(f"{JOBS}[0].name", LONG_JOB)],
        name="x" * 57,
        without_name=False,
    ),
    Case(
        "pod names of 64 characters",
        spec_of(),
        [(f"{JOBS}[0].name", LONG_POD)],
        name="x" * 49,
        without_name=False,
    ),
    Case(
        "pod names of 64 characters, of many pods",
        spec_of(job(spec={"parallelism": 11, "completions": 11})),
        [(f"{JOBS}[0].name", LONG_POD)],
        name="x" * 48,
        without_name=False,
    ),
    Case(
        "pod names of 64 characters, of many replicas",
        spec_of(job(replicas=11)),
        [(f"{JOBS}[0].name", LONG_POD)],
        name="x" * 48,
        without_name=False,
    ),
    Case(
        "name that starts with a digit",
        spec_of(),
        [(f"{JOBS}[0].name", NOT_A_LABEL), (f"{JOBS}[0].name", NOT_A_LABEL)],
        name="1-train",
        without_name=False,
    ),
    Case(
        "job in capitals",
        spec_of(job("Node", spec={"completions": None})),
        [(f"{JOBS}[0].name", NOT_A_LABEL)],
        without_name=False,
    ),
    Case(
        "success of a job that is not there",
        spec_of(successPolicy={"operator": "All", "targetReplicatedJobs": ["node", "none"]}),
        [
            (
                "spec.successPolicy.targetReplicatedJobs[1]",
                "invalid replicatedJob name 'none' does not appear in .spec.ReplicatedJobs",
            )
        ],
    ),
    Case(
        "restart of one job, and JobSet looks no further",
        on_failure(
            rule(name="7"),
            rule("RestartJob", name="a", targetReplicatedJobs=["none"]),
        ),
        [("spec.failurePolicy.rules[1].action", RESTART_JOB)],
    ),
    Case(
        "restart of one job for ever",
        on_failure(rule("RestartJobAndIgnoreMaxRestarts")),
        [("spec.failurePolicy.rules[0].action", RESTART_JOB)],
    ),
    Case(
        "rule name of 129 characters",
        on_failure(rule(name="x" * 129)),
        [
            (
                "spec.failurePolicy.rules[0].name",
                "invalid failure policy rule name of length 129, the rule name must be at least 1 "
                "characters long and at most 128 characters long",
            )
        ],
    ),
    Case(
        "rule name that starts with a digit",
        on_failure(rule(name="1st")),
        [
            (
                "spec.failurePolicy.rules[0].name",
                f"invalid failure policy rule name '1st', {RULE_NAME}",
            )
        ],
    ),
    Case(
        "rules of one name",
        on_failure(rule(name="a"), rule(name="b"), rule(name="a")),
        [
            (
                "spec.failurePolicy.rules",
                "rule names are not unique, rules with indices [0 2] all have the same name 'a'",
            )
        ],
    ),
    Case(
        "a rule of the name that JobSet gives to a nameless one",
        on_failure(rule(name="failurePolicyRule1"), rule(name="")),
        [
            (
                "spec.failurePolicy.rules",
                "rule names are not unique, rules with indices [0 1] all have the same name "
                "'failurePolicyRule1'",
            )
        ],
    ),
    Case(
        "rule for a job that is not there",
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
        "rule for a reason that is none",
        on_failure(rule(onJobFailureReasons=["PodFailurePolicy", "Bored"])),
        [
            (
                "spec.failurePolicy.rules[0].onJobFailureReasons[1]",
                "invalid job failure reason 'Bored' in failure policy is not a recognized job "
                "failure reason",
            )
        ],
    ),
    Case(
        "coordinator in a job that is not there",
        spec_of(coordinator={"replicatedJob": "none"}),
        [("spec.coordinator.replicatedJob", "coordinator replicatedJob none does not exist")],
    ),
    Case(
        "coordinator in a replica that is not there",
        coordinated(jobIndex=1),
        [
            (
                "spec.coordinator.jobIndex",
                "coordinator job index 1 is invalid for replicatedJob node",
            )
        ],
    ),
    Case(
        "coordinator in a job without an index",
        coordinated([job(spec={"completionMode": "NonIndexed"})]),
        [("spec.coordinator.replicatedJob", NO_INDEX)],
    ),
    Case(
        "coordinator in a job of any number of pods",
        coordinated([job(spec={"completions": None})]),
        [("spec.coordinator.replicatedJob", NO_INDEX)],
        without_name=False,
    ),
    Case(
        "coordinator in a pod that is not there",
        coordinated(podIndex=2),
        [
            (
                "spec.coordinator.podIndex",
                "coordinator pod index 2 is invalid for replicatedJob node job index 0",
            )
        ],
        without_name=False,
    ),
    Case(
        "coordinator in a pod before the first",
        coordinated(podIndex=-1),
        [
            (
                "spec.coordinator.podIndex",
                "coordinator pod index -1 is invalid for replicatedJob node job index 0",
            )
        ],
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
        without_name=False,
    ),
    Case(
        "claims of one name",
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
        "claim names of 64 characters",
        spec_of(mounting("x" * 58), volumeClaimPolicies=claims("x" * 58)),
        [(CLAIM_NAME, "VolumeClaimPolicies template name is too long")],
        without_name=False,
    ),
    Case(
        "claim and volume of one name",
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
    Case(
        "claim that nothing mounts",
        spec_of(mounting("other"), volumeClaimPolicies=claims("data")),
        [
            (
                JOBS,
                "replicatedJob containers don't have a matching volumeMount: data from "
                "VolumeClaimPolicies",
            )
        ],
    ),
)

ADMITTED = (
    Case("the least", spec_of()),
    Case("the longest name of ten pods", spec_of(job(spec={"completions": 10})), name="x" * 48),
    Case("the longest name of ten replicas", spec_of(job(replicas=10)), name="x" * 48),
    Case(
        "the longest name of jobs without an index",
        spec_of(job(spec={"completionMode": "NonIndexed"})),
        name="x" * 56,
    ),
    Case("as many pods as there can be", spec_of(job(spec={"parallelism": MANY}))),
    Case("a job that waits for itself", spec_of(job("a"), job("b", dependsOn=after("a", "b")))),
    Case("no jobs to wait for", spec_of(job("a"), job("b", dependsOn=[]))),
    Case(
        "jobs in order",
        spec_of(job("a"), job("b"), startupPolicy=IN_ORDER),
    ),
    Case("a subdomain of 63 characters", spec_of(network={"subdomain": "x" * 63})),
    Case("no subdomain", spec_of(network={"subdomain": ""})),
    Case("a manager of 63 characters", spec_of(managedBy=f"acme.io/{'x' * 55}")),
    Case("a manager with odd characters", spec_of(managedBy="acme.io/a/-._~%!$&'()*+,;=:")),
    Case("a group of 63 characters", spec_of(job(groupName="x" * 63))),
    Case("no job", {"replicatedJobs": []}),
    Case("no replicas", spec_of(job(replicas=0))),
    Case(
        "success of a job",
        spec_of(successPolicy={"operator": "Any", "targetReplicatedJobs": ["node"]}),
    ),
    Case(
        "rules for what they can be for",
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
