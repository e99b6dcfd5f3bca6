"""Every rule about runtimes: errors, warnings, and rejections by JobSet."""

from typing import Any

from tests.integration.webhooks.cases import (
    RUNTIME,
    STEP,
    RuntimeCase,
    job_with,
    launcher,
    mpi,
    torch,
    with_metadata,
    with_template,
    worker,
)
from tests.integration.webhooks.trainjob_cases import POLICY, injecting
from tests.support.objects import Object
from tests.support.objects import runtime as runtime_of

JOBS = "spec.template.spec.replicatedJobs"
CONTAINERS = "template.spec.template.spec.containers"
LABEL_WORDS = (
    "must be lower-case letters, digits and -, start with a letter and end with a letter or digit"
)
DNS_LABEL_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
STEPS = ("dataset-initializer", "model-initializer")
FRAMEWORK, SUPPORT = "trainer.kubeflow.org/framework", "trainer.kubeflow.org/support"


def queued(queue: str) -> Object:
    """A runtime whose gangs wait in this queue of Volcano's."""
    node = job_with(pod={"schedulerName": "volcano"})
    manifest = runtime_of(jobs=[node], podGroupPolicy={"volcano": {}})
    metadata = {"annotations": {"scheduling.volcano.sh/queue-name": queue}}
    manifest["spec"]["template"]["metadata"] = metadata
    return manifest


def template(manifest: Object | None = None, **fields: Any) -> Object:
    """A runtime with this in its JobSet's spec."""
    return with_template(manifest or torch(), **fields)


def on_failure(*rules: Object, **policy: Any) -> Object:
    """A runtime with a failure policy."""
    return template(failurePolicy={"maxRestarts": 1, "rules": list(rules), **policy})


def rule(**fields: Any) -> Object:
    """A rule of a failure policy."""
    return {"name": "first", "action": "FailJobSet", **fields}


def claiming(*claims: str, mounts: str = "data", **pod: Any) -> Object:
    """A runtime whose JobSets claim volumes."""
    mounting = {"volumeMounts": [{"name": mounts, "mountPath": "/data"}]}
    templates = [{"metadata": {"name": claim}, "spec": {}} for claim in claims]
    return template(
        torch(job_with(container=mounting, pod=pod)), volumeClaimPolicies=[{"templates": templates}]
    )


def after(name: str) -> list[Object]:
    """The jobs that a job waits for."""
    return [{"name": name, "status": "Complete"}]


ERRORS = (
    RuntimeCase(
        "torch-env-injection",
        injecting("typo"),
        injecting("side"),
        "spec.mlPolicy.torch.envInjection.targets[0].containerNames[0]: Invalid value: "
        '"typo": envInjection target podSet "node" container "typo" not found in runtime template',
    ),
    *(
        RuntimeCase(
            "runtime-replicas",
            torch(job_with(step, step, replicas=2), job_with()),
            torch(job_with(step, step, replicas=1), job_with()),
            f"{JOBS}[0].replicas: Invalid value: 2: always must be 1",
            variant=step,
        )
        for step in STEPS
    ),
    RuntimeCase(
        "runtime-replicas",
        torch(job_with(replicas=3)),
        torch(job_with(replicas=1)),
        f"{JOBS}[0].replicas: Invalid value: 3: always must be 1",
        variant="trainer",
    ),
    RuntimeCase(
        "runtime-replicas",
        torch(job_with(replicas=0)),
        torch(job_with()),
        f"{JOBS}[0].replicas: Invalid value: 0: always must be 1",
        variant="none",
    ),
    *(
        RuntimeCase(
            "runtime-step-container",
            torch(job_with(step, step, container={"name": "fetch"}), job_with()),
            torch(job_with(step, step), job_with()),
            f'{JOBS}[0].{CONTAINERS}: Invalid value: [{{"name":"fetch"}}]: must contain the '
            f"required container for the ancestor: {step}",
            variant=step,
        )
        for step in STEPS
    ),
    RuntimeCase(
        "runtime-step-container",
        torch(job_with(container={"name": "train", "env": [{"name": "A", "value": "hunter2"}]})),
        torch(job_with(container={"name": "node", "env": [{"name": "A", "value": "hunter2"}]})),
        f'{JOBS}[0].{CONTAINERS}: Invalid value: [{{"name":"train"}}]: must contain the required '
        "container for the ancestor: trainer",
        variant="trainer",
    ),
    RuntimeCase(
        "runtime-step-container",
        torch(
            job_with(
                container={"name": "train"},
                pod={"initContainers": [{"name": "node", "image": "trainer"}]},
            )
        ),
        torch(job_with(pod={"initContainers": [{"name": "train", "image": "trainer"}]})),
        f'{JOBS}[0].{CONTAINERS}: Invalid value: [{{"name":"train"}}]: must contain the required '
        "container for the ancestor: trainer",
        variant="init containers do not count",
    ),
    RuntimeCase(
        "runtime-trainer",
        torch(job_with(), job_with("other", container={"name": "node"})),
        torch(job_with(), job_with("other", None, container={"name": "node"})),
        f"{JOBS}[1].template.metadata.labels: Invalid value: "
        f'{{"{STEP}":"trainer"}}: only one job can have the label {STEP}: trainer',
    ),
    RuntimeCase(
        "runtime-template",
        {**torch(), "spec": {"mlPolicy": {"numNodes": 1}}},
        torch(),
        "spec.template.spec: Required value: the spec of the JobSet to create for each TrainJob",
        variant="none",
    ),
    RuntimeCase(
        "runtime-template",
        template(suspend=False, replicatedJobs=[]),
        template(suspend=False),
        f"{JOBS}: Required value: at least one job that runs the training",
        variant="no job",
    ),
    RuntimeCase(
        "runtime-pods",
        torch(job_with(), {"name": "other", "template": {}}),
        torch(job_with(), job_with("with-pods", None)),
        f"{JOBS}[1].template.spec.template.spec: Required value: the pods of the job",
    ),
    RuntimeCase(
        "runtime-pods",
        torch(job_with(), job_with("other", None, pod={"containers": []})),
        torch(job_with(), job_with("with-containers", None)),
        f"{JOBS}[1].{CONTAINERS}: Required value: at least one container",
        variant="no containers",
    ),
    RuntimeCase(
        "runtime-parallelism",
        torch(job_with(spec={"parallelism": 0})),
        torch(job_with(spec={"parallelism": 1})),
        f"{JOBS}[0].template.spec.parallelism: Invalid value: 0: must be a number of pods, at "
        "least 1",
    ),
    RuntimeCase(
        "runtime-parallelism",
        torch(job_with(), job_with("other", None, spec={"parallelism": -1})),
        torch(job_with(), job_with("other", None, spec={"parallelism": 0})),
        f"{JOBS}[1].template.spec.parallelism: Invalid value: -1: must be a number of pods, at "
        "least 0",
        variant="of a job that does no step",
    ),
    RuntimeCase(
        "runtime-count",
        torch(job_with(), job_with("other", None, replicas=-1)),
        torch(job_with(), job_with("other", None, replicas=1)),
        f"{JOBS}[1].replicas: Invalid value: -1: must be a number of Jobs, at least 0",
    ),
    RuntimeCase(
        "runtime-names",
        torch(job_with(), job_with("Other", None)),
        torch(job_with(), job_with("other", None)),
        f'{JOBS}[1].name: Invalid value: "Other": {LABEL_WORDS}',
        variant="job",
    ),
    RuntimeCase(
        "runtime-names",
        template(network={"subdomain": "a.b"}),
        template(network={"subdomain": "a-b"}),
        f'spec.template.spec.network.subdomain: Invalid value: "a.b": {LABEL_WORDS}',
        variant="subdomain",
    ),
    RuntimeCase(
        "runtime-names",
        torch(job_with(), job_with("", None)),
        torch(job_with(), job_with("other", None)),
        f"{JOBS}[1].name: Required value: the name of the job",
        variant="none",
    ),
    RuntimeCase(
        "runtime-names-too-long",
        torch(job_with(), job_with("x" * 52, None)),
        torch(job_with(), job_with("x" * 51, None)),
        f"{JOBS}[1].name: Too long: leaves no room for the name of a TrainJob: each pod of the job "
        f"{'x' * 52} is named after both, and such names must be no more than 63 characters",
    ),
    RuntimeCase(
        "runtime-volcano-queue",
        queued(""),
        queued("research"),
        'spec.template.metadata.annotations[scheduling.volcano.sh/queue-name]: Invalid value: "": '
        "Volcano queue name must not be empty",
    ),
    RuntimeCase(
        "runtime-quantity",
        torch(job_with(container={"resources": {"limits": {"cpu": "-1"}}})),
        torch(job_with(container={"resources": {"limits": {"cpu": "1"}}})),
        f'{JOBS}[0].{CONTAINERS}[0].resources.limits[cpu]: Invalid value: "-1": must be at least 0',
    ),
    RuntimeCase(
        "runtime-mpi-workers",
        mpi(launcher(), launcher_is_node=False),
        mpi(launcher(), launcher_is_node=True),
        f"{JOBS}: Required value: a job named node: the launcher is not a node",
    ),
    RuntimeCase(
        "runtime-mpi-container",
        mpi(job_with("node", None, container={"name": "other"}), launcher()),
        mpi(worker(), launcher()),
        f"{JOBS}[0].{CONTAINERS}: Required value: a container named node, which gets the keys",
    ),
)

HINTS = (
    RuntimeCase(
        "runtime-no-framework",
        with_metadata(torch(), labels={"team": "vision"}),
        with_metadata(torch(), labels={FRAMEWORK: "torch"}),
        f"metadata.labels: without the label {FRAMEWORK} the Kubeflow SDK does not list the "
        "runtime, and cannot list TrainJobs while one uses it",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-no-policy",
        {**torch(), "spec": {"template": torch()["spec"]["template"]}},
        runtime_of(mlPolicy={}),
        "spec.mlPolicy: the Kubeflow SDK cannot read runtimes without it: set it to {}",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-no-trainer",
        torch(job_with(step=None)),
        torch(job_with()),
        f"{JOBS}: no job has the label {STEP}: trainer: spec.trainer of TrainJobs will have no "
        "effect, and the Kubeflow SDK cannot read the runtime",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-is-deprecated",
        with_metadata(torch(), labels={FRAMEWORK: "torch", SUPPORT: "deprecated"}),
        with_metadata(torch(), labels={FRAMEWORK: "torch", SUPPORT: "supported"}),
        f'<kind> "{RUNTIME}" is deprecated and will be removed in a future release of Kubeflow '
        f"Trainer. See runtime deprecation policy: {POLICY}",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-unknown-step",
        torch(job_with(), job_with("other", "trainers")),
        torch(job_with(), job_with("other", None)),
        f"{JOBS}[1].template.metadata.labels[{STEP}]: trainers has no effect: it must be one of "
        "trainer, dataset-initializer, model-initializer",
        is_warning=True,
    ),
    *(
        RuntimeCase(
            "runtime-unlabelled-initializer",
            torch(job_with(step, None), job_with()),
            torch(job_with(step, step), job_with()),
            f"{JOBS}[0].template.metadata.labels: TrainJobs cannot use spec.initializer.{asset} "
            f"unless the job {step} has the label {STEP}: {step}",
            variant=asset,
            is_warning=True,
        )
        for step, asset in zip(STEPS, ("dataset", "model"), strict=True)
    ),
    RuntimeCase(
        "runtime-parallelism-without-effect",
        torch(job_with(spec={"parallelism": 2})),
        torch(job_with(spec={"parallelism": 1})),
        f"{JOBS}[0].template.spec.parallelism: 2 has no effect: there are 1 pods "
        "because of spec.mlPolicy.numNodes, unless the TrainJob sets numNodes",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-parallelism-without-effect",
        mpi(job_with("node", None, spec={"parallelism": 4}), launcher(), nodes=4),
        mpi(job_with("node", None, spec={"parallelism": 3}), launcher(), nodes=4),
        f"{JOBS}[0].template.spec.parallelism: 4 has no effect: there are 3 pods "
        "because of spec.mlPolicy.numNodes, unless the TrainJob sets numNodes",
        variant="mpi",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-completions-without-effect",
        torch(job_with(), job_with("other", None, spec={"parallelism": 2, "completions": 4})),
        torch(job_with(), job_with("other", None, spec={"parallelism": 2, "completions": 2})),
        f"{JOBS}[1].template.spec.completions: 4 has no effect: it is always the number of pods "
        "(2)",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-suspend-without-effect",
        template(suspend=True),
        template(suspend=False),
        "spec.template.spec.suspend: has no effect: spec.suspend of each TrainJob is used",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-scheduler",
        runtime_of(podGroupPolicy={"volcano": {}}),
        runtime_of(
            jobs=[job_with(pod={"schedulerName": "volcano"})], podGroupPolicy={"volcano": {}}
        ),
        "spec.podGroupPolicy.volcano: the pods of node have no schedulerName and may not start "
        "together: set schedulerName: volcano",
        variant="volcano",
        is_warning=True,
    ),
    RuntimeCase(
        "runtime-scheduler",
        runtime_of(podGroupPolicy={"coscheduling": {}}),
        runtime_of(
            jobs=[job_with(pod={"schedulerName": "gangs"})], podGroupPolicy={"coscheduling": {}}
        ),
        "spec.podGroupPolicy.coscheduling: the pods of node have no schedulerName and may not "
        "start together: set schedulerName, unless the default scheduler has the plugin",
        variant="coscheduling",
        is_warning=True,
    ),
)


def rejected_by_job_set(
    variant: str, wrong: Object, right: Object, path: str, text: str
) -> RuntimeCase:
    """A runtime with a name that JobSet rejects."""
    message = (
        f"spec.template.{path}: Forbidden: JobSet would reject every JobSet of the runtime: {text}"
    )
    return RuntimeCase("runtime-jobset-refuses", wrong, right, message, variant)


JOB_SET_REJECTIONS = (
    rejected_by_job_set(
        "first depends",
        torch(job_with(dependsOn=after("node"))),
        torch(job_with("other", None), job_with(dependsOn=after("other"))),
        "spec.replicatedJobs[0].dependsOn",
        "DependsOn can't be set for the first ReplicatedJob",
    ),
    rejected_by_job_set(
        "depends on a later",
        torch(job_with("a", None), job_with(dependsOn=after("b")), job_with("b", None)),
        torch(job_with("a", None), job_with(dependsOn=after("a")), job_with("b", None)),
        "spec.replicatedJobs[1].dependsOn[0].name",
        "replicatedJob: node cannot depend on replicatedJob: b",
    ),
    rejected_by_job_set(
        "groupName",
        torch(job_with(groupName="A")),
        torch(job_with(groupName="a")),
        "spec.replicatedJobs[0].groupName",
        DNS_LABEL_WORDS,
    ),
    rejected_by_job_set(
        "groupName too long",
        torch(job_with(groupName="x" * 64)),
        torch(job_with(groupName="x" * 63)),
        "spec.replicatedJobs[0].groupName",
        ".spec.replicatedJob[].groupName is too long, must be less than 63 characters",
    ),
    rejected_by_job_set(
        "success of an unknown job",
        template(successPolicy={"operator": "All", "targetReplicatedJobs": ["nodes"]}),
        template(successPolicy={"operator": "All", "targetReplicatedJobs": ["node"]}),
        "spec.successPolicy.targetReplicatedJobs[0]",
        "invalid replicatedJob name 'nodes' does not appear in .spec.ReplicatedJobs",
    ),
    rejected_by_job_set(
        "rule for an unknown job",
        on_failure(rule(targetReplicatedJobs=["nodes"])),
        on_failure(rule(targetReplicatedJobs=["node"])),
        "spec.failurePolicy.rules[0].targetReplicatedJobs[0]",
        "invalid replicatedJob name 'nodes' in failure policy does not appear in "
        ".spec.ReplicatedJobs",
    ),
    rejected_by_job_set(
        "coordinator in no job",
        template(coordinator={"replicatedJob": "nodes"}),
        template(coordinator={"replicatedJob": "node"}),
        "spec.coordinator.replicatedJob",
        "coordinator replicatedJob nodes does not exist",
    ),
    rejected_by_job_set(
        "two claims of one name",
        claiming("data", "data"),
        claiming("data"),
        "spec.volumeClaimPolicies[0].templates[1].metadata.name",
        "names must be unique for VolumeClaimPolicies template",
    ),
    rejected_by_job_set(
        "claim in capitals",
        claiming("Data", mounts="Data"),
        claiming("data"),
        "spec.volumeClaimPolicies[0].templates[0].metadata.name",
        SUBDOMAIN_WORDS,
    ),
    rejected_by_job_set(
        "claim and volume",
        claiming("data", volumes=[{"name": "data", "emptyDir": {}}]),
        claiming("data", volumes=[{"name": "other", "emptyDir": {}}]),
        "spec.replicatedJobs[0].template.spec.template.spec.volumes[0].name",
        "volume name conflicts with VolumeClaimPolicy template name: data",
    ),
)

RUNTIME_CASES: tuple[RuntimeCase, ...] = (*ERRORS, *HINTS, *JOB_SET_REJECTIONS)
