"""Every rule about TrainJobs, except those about updates of TrainJobs with a JobSet."""

from typing import Any

from tests.integration.webhooks.cases import (
    NODE,
    REFERENCE,
    RUNTIME,
    STEP,
    JobCase,
    job_with,
    launcher,
    mpi,
    plain,
    torch,
    with_metadata,
    with_template,
    worker,
)
from tests.support.objects import Object
from tests.support.objects import runtime as runtime_of

POLICY = (
    "https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime/"
    "#runtime-deprecation-policy"
)
OVERRIDES = "spec.podTemplateOverrides"
OLD_OVERRIDES = "spec.podSpecOverrides"
PATCH = "spec.runtimePatches[0]"
PATCHED = f"{PATCH}.trainingRuntimeSpec.template.spec.replicatedJobs[0]"
PATCHED_POD = f"{PATCHED}.template.spec.template.spec"
TUNE = ["tune", "run"]
LORA = "model.lora_attn_modules=[q_proj]"
QLORA = "model.quantize_base=True"
GPU = "nvidia.com/gpu"
QUEUE = "scheduling.volcano.sh/queue-name"
WORD_WORDS = (
    "must be letters, digits, -, _ and ., and start and end with a letter or digit, with at most "
    "63 characters"
)
MOUNTING = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
VOLUMES = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
# Stored before the webhook was registered: they would be rejected now.
UNUSABLE, NO_CONTAINERS, NO_WORKERS = "old-unusable", "old-no-containers", "old-no-workers"
FIRST_DEPENDS = "old-first-depends"

CLAIM = {"name": "gpu", "resourceClaimTemplateName": "gpus"}
USED = {"name": "gpu"}
SIDE_ENV = {"name": "side", "env": [{"name": "PET_NNODES", "value": "2"}]}


def override(**fields: Any) -> list[Object]:
    """An override of the pods of the job node."""
    return [{"targetJobs": NODE, **fields}]


def patch(
    job: str = "node", of_job: Object | None = None, manager: str = "acme.io/tuner", **spec: Any
) -> Object:
    """A spec with one runtime patch of a job."""
    template: Object = {"spec": {"template": {"spec": spec}}}
    if of_job is not None:
        template["metadata"] = of_job
    job_set = {"spec": {"replicatedJobs": [{"name": job, "template": template}]}}
    patch = {"manager": manager, "trainingRuntimeSpec": {"template": job_set}}
    return {"runtimePatches": [patch]}


OTHER_ENV = [{"name": "OWN", "value": "1"}]


def injecting(*names: str) -> Object:
    """A runtime with a container `side`, which injects the environment of torchrun into these."""
    containers = [{"name": "node", "image": "trainer"}, {"name": "side", "image": "side"}]
    targets = [{"jobName": "node", "containerNames": [*names]}]
    policy = {"envInjection": {"targets": targets}}
    return torch(job_with(pod={"containers": containers}), torch=policy)


def initializing(*steps: str) -> Object:
    """A runtime with jobs for these steps, each with a container of its name."""
    return torch(*(job_with(step, step) for step in steps), job_with())


def tuning(model: str | None, **resources: Any) -> Object:
    """A runtime for torchtune and this model."""
    node = job_with(container={"resources": {"limits": resources}} if resources else {})
    manifest = torch(node)
    if model is None:
        return manifest
    return with_metadata(manifest, annotations={"trainer.kubeflow.org/torchtune-model": model})


def tuned(*args: str, **trainer: Any) -> Object:
    """A TrainJob for torchtune."""
    return {"trainer": {"command": TUNE, "args": list(args), **trainer}}


def volcano(**pod: Any) -> Object:
    """A runtime for Volcano."""
    node = job_with(pod={"schedulerName": "volcano", **pod})
    return runtime_of(jobs=[node], podGroupPolicy={"volcano": {}})


STORED_BEFORE: dict[str, Object] = {
    UNUSABLE: torch(job_with(), job_with("other", container={"name": "node"})),
    NO_CONTAINERS: torch(
        job_with("dataset-initializer", "dataset-initializer", container={"name": "other"}),
        job_with("model-initializer", "model-initializer", container={"name": "other"}),
        job_with(),
    ),
    NO_WORKERS: mpi(launcher(), launcher_is_node=False),
    FIRST_DEPENDS: torch(job_with(dependsOn=[{"name": "node", "status": "Ready"}])),
}


def of_old(name: str) -> Object:
    """A TrainJob's reference to one of those."""
    kind = "ClusterTrainingRuntime"
    return {"runtimeRef": {"name": name, "apiGroup": "trainer.kubeflow.org", "kind": kind}}


def ref_text(kind: str, name: str) -> str:
    """That reference, in messages."""
    return f'{{"name":"{name}","apiGroup":"trainer.kubeflow.org","kind":"{kind}"}}'


ABOUT_RUNTIMES = (
    JobCase(
        "runtime-unsupported",
        {"runtimeRef": {"name": "recipe", "apiGroup": "acme.io", "kind": "Recipe"}},
        {},
        'spec.runtimeRef: Invalid value: {"name":"recipe","apiGroup":"acme.io","kind":"Recipe"}: '
        "unsupported runtime: Recipe.acme.io: must be "
        "ClusterTrainingRuntime.trainer.kubeflow.org or TrainingRuntime.trainer.kubeflow.org",
        torch(),
        torch(),
    ),
    JobCase(
        "runtime-unsupported",
        {"runtimeRef": {"name": "torch", "apiGroup": "", "kind": "TrainingRuntime"}},
        {},
        'spec.runtimeRef: Invalid value: {"name":"torch","apiGroup":"","kind":"TrainingRuntime"}: '
        "unsupported runtime: TrainingRuntime: must be "
        "ClusterTrainingRuntime.trainer.kubeflow.org or TrainingRuntime.trainer.kubeflow.org",
        torch(),
        torch(),
        variant="of no group",
    ),
    JobCase(
        "runtime-missing",
        {"runtimeRef": {"name": "nowhere", "kind": "TrainingRuntime"}},
        {},
        f"spec.runtimeRef: Invalid value: {ref_text('TrainingRuntime', 'nowhere')}: "
        'TrainingRuntime.trainer.kubeflow.org "nowhere" not found: specified trainingRuntime '
        "must be created before the TrainJob is created",
        torch(),
        torch(),
        variant="in the namespace",
    ),
    JobCase(
        "runtime-missing",
        {"runtimeRef": {"name": "nowhere"}},
        {},
        f"spec.runtimeRef: Invalid value: {ref_text('ClusterTrainingRuntime', 'nowhere')}: "
        'ClusterTrainingRuntime.trainer.kubeflow.org "nowhere" not found: specified '
        "clusterTrainingRuntime must be created before the TrainJob is created",
        torch(),
        torch(),
        variant="of the cluster",
    ),
    JobCase(
        "runtime-unusable",
        of_old(UNUSABLE),
        {},
        f"spec.runtimeRef: Invalid value: {ref_text('ClusterTrainingRuntime', UNUSABLE)}: "
        f"ClusterTrainingRuntime {UNUSABLE}: "
        "spec.template.spec.replicatedJobs[1].template.metadata.labels: Invalid value: "
        f'{{"{STEP}":"trainer"}}: only one job can have the label {STEP}: trainer',
        torch(),
        torch(),
    ),
    JobCase(
        "runtime-deprecated",
        {},
        {},
        f'Referenced <kind> "{RUNTIME}" is deprecated and will be removed in a future release of '
        f"Kubeflow Trainer. See runtime deprecation policy: {POLICY}",
        with_metadata(torch(), labels={"trainer.kubeflow.org/support": "deprecated"}),
        torch(),
        is_warning=True,
    ),
)

NAMES = (
    JobCase(
        "name-too-long",
        {},
        {},
        'metadata.name: Invalid value: "tune-llama-on-all-of-the-mail-of-our-support-desk": must '
        "be no more than 48 characters: each pod of the job node is named after it, and such names "
        "must be no more than 63 characters",
        torch(),
        name="tune-llama-on-all-of-the-mail-of-our-support-desk",
        right_name="tune-llama-on-all-of-the-mail-of-our-support-dep",
    ),
    JobCase(
        "name-too-long",
        {"trainer": {"numNodes": 11}},
        {"trainer": {"numNodes": 10}},
        f'metadata.name: Invalid value: "{"x" * 48}": must be no more than 47 characters: each '
        "pod of the job node is named after it, and such names must be no more than 63 characters",
        torch(),
        variant="for so many pods",
        name="x" * 48,
        right_name="x" * 48,
    ),
    JobCase(
        "name-too-long",
        {},
        {},
        f'metadata.name: Invalid value: "{"x" * 34}": must be no more than 33 characters: each '
        "pod of the job dataset-initializer is named after it, and such names must be no more than "
        "63 characters",
        initializing("dataset-initializer"),
        variant="for a long job",
        name="x" * 34,
        right_name="x" * 33,
    ),
    JobCase(
        "name-too-long",
        {},
        {},
        f'metadata.name: Invalid value: "{"x" * 27}": must be no more than 26 characters: the '
        "coordinator's address is named after it, and such names must be no more than 63 "
        "characters",
        with_template(torch(), coordinator={"replicatedJob": "node"}),
        variant="for the coordinator",
        name="x" * 27,
        right_name="x" * 26,
    ),
    JobCase(
        "name-too-long",
        {},
        {},
        f'metadata.name: Invalid value: "{"x" * 23}": must be no more than 22 characters: each '
        f"claim {'c' * 40} is named after it, and such names must be no more than 63 characters",
        with_template(
            torch(job_with(container={"volumeMounts": [{"name": "c" * 40, "mountPath": "/data"}]})),
            volumeClaimPolicies=[{"templates": [{"metadata": {"name": "c" * 40}, "spec": {}}]}],
        ),
        variant="for a claim",
        name="x" * 23,
        right_name="x" * 22,
    ),
)

INITIALIZERS = (
    JobCase(
        "initializer-missing",
        {"initializer": {"dataset": {"storageUri": "hf://a/b"}}},
        {},
        f"spec.runtimeRef: Invalid value: {REFERENCE}: must have dataset-initializer job when "
        "trainJob is configured with input datasetConfig",
        initializing("model-initializer"),
        variant="dataset",
    ),
    JobCase(
        "initializer-missing",
        {"initializer": {"model": {"storageUri": "hf://a/b"}}},
        {},
        f"spec.runtimeRef: Invalid value: {REFERENCE}: must have model-initializer job when "
        "trainJob is configured with input modelConfig",
        initializing("dataset-initializer"),
        variant="model",
    ),
    JobCase(
        "initializer-missing",
        {"initializer": {"dataset": {"storageUri": "hf://a/b"}}},
        {"initializer": {"dataset": {"storageUri": "hf://a/b"}}},
        f"spec.runtimeRef: Invalid value: {REFERENCE}: must have dataset-initializer job when "
        "trainJob is configured with input datasetConfig: the job dataset-initializer exists, "
        f"but lacks the label {STEP}: dataset-initializer",
        torch(job_with("dataset-initializer", None), job_with()),
        torch(
            job_with("fetch", "dataset-initializer", container={"name": "dataset-initializer"}),
            job_with(),
        ),
        variant="by its label, not by its name",
    ),
    JobCase(
        "initializer-container-missing",
        {**of_old(NO_CONTAINERS), "initializer": {"dataset": {"storageUri": "hf://a/b"}}},
        {"initializer": {"dataset": {"storageUri": "hf://a/b"}}},
        f"spec.runtimeRef: Invalid value: {ref_text('ClusterTrainingRuntime', NO_CONTAINERS)}: "
        "must have container with name - dataset-initializer in the dataset-initializer job",
        initializing("dataset-initializer"),
        initializing("dataset-initializer"),
        variant="dataset",
    ),
    JobCase(
        "initializer-container-missing",
        {**of_old(NO_CONTAINERS), "initializer": {"model": {"storageUri": "hf://a/b"}}},
        {"initializer": {"model": {"storageUri": "hf://a/b"}}},
        f"spec.runtimeRef: Invalid value: {ref_text('ClusterTrainingRuntime', NO_CONTAINERS)}: "
        "must have container with name - model-initializer in the model-initializer job",
        initializing("model-initializer"),
        initializing("model-initializer"),
        variant="model",
    ),
    JobCase(
        "initializer-secret-name",
        {"initializer": {"dataset": {"secretRef": {"name": ""}}}},
        {"initializer": {"dataset": {"secretRef": {"name": "token"}}}},
        "spec.initializer.dataset.secretRef.name: Required value: the name of the Secret",
        initializing("dataset-initializer"),
        variant="dataset",
    ),
    JobCase(
        "initializer-secret-name",
        {"initializer": {"model": {"secretRef": {}}}},
        {"initializer": {"model": {"secretRef": {"name": "token"}}}},
        "spec.initializer.model.secretRef.name: Required value: the name of the Secret",
        initializing("model-initializer"),
        variant="model",
    ),
)

TRAINERS = (
    JobCase(
        "torch-reserved-env",
        {"podTemplateOverrides": override(spec={"containers": [SIDE_ENV]})},
        {"podTemplateOverrides": override(spec={"containers": [{**SIDE_ENV, "env": OTHER_ENV}]})},
        'spec.podTemplateOverrides[0].spec.containers[0].env: Invalid value: ["PET_NNODES"]: must '
        "not have reserved envs, invalid envs configured: [PET_NNODES]",
        injecting("side"),
        variant="envInjection",
    ),
    JobCase(
        "resource-claims",
        {"trainer": {"resourceClaimsPerNode": [CLAIM], "resourcesPerNode": {"claims": [USED]}}},
        {"trainer": {"resourceClaimsPerNode": [], "resourcesPerNode": {"claims": [USED]}}},
        "spec.trainer.resourcesPerNode.claims: Forbidden: cannot be set together with "
        "spec.trainer.resourceClaimsPerNode",
        torch(job_with(pod={"resourceClaims": [{**USED, "resourceClaimName": "mine"}]})),
    ),
    JobCase(
        "resource-claims",
        {"trainer": {"resourcesPerNode": {"claims": [USED, {"name": "own"}]}}},
        {"trainer": {"resourcesPerNode": {"claims": [{"name": "own"}]}}},
        f'spec.trainer.resourcesPerNode.claims[0].name: Invalid value: "{USED["name"]}": is not '
        "the name of a resource claim of the pods: the API server would reject them",
        torch(job_with(pod={"resourceClaims": [{"name": "own", "resourceClaimName": "mine"}]})),
        variant="unknown",
    ),
    JobCase(
        "resource-claims",
        {"trainer": {"resourceClaimsPerNode": [{**CLAIM, "name": "own"}]}},
        {"trainer": {"resourceClaimsPerNode": []}},
        'spec.trainer.resourceClaimsPerNode[0].name: Invalid value: "own": is already the name of '
        "a resource claim of the job node of the runtime",
        torch(job_with(pod={"resourceClaims": [{"name": "own", "resourceClaimName": "mine"}]})),
        variant="taken",
    ),
    JobCase(
        "resource-claims",
        {"trainer": {"resourceClaimsPerNode": [{**CLAIM, "resourceClaimTemplateName": "No"}]}},
        {"trainer": {"resourceClaimsPerNode": []}},
        'spec.trainer.resourceClaimsPerNode[0].resourceClaimTemplateName: Invalid value: "No": '
        "must be lower-case letters, digits, - and ., and each part between dots must start and "
        "end with a letter or digit",
        torch(),
        variant="template",
    ),
    *(
        JobCase(
            "torch-reserved-env",
            {"trainer": {"env": [{"name": name, "value": "hunter2"}]}},
            {"trainer": {"env": [{"name": f"MY_{name}", "value": "hunter2"}]}},
            f'spec.trainer.env: Invalid value: ["{name}"]: must not have reserved envs, invalid '
            f"envs configured: [{name}]",
            torch(),
            variant=name,
        )
        for name in (
            "PET_NNODES",
            "PET_NPROC_PER_NODE",
            "PET_NODE_RANK",
            "PET_MASTER_ADDR",
            "PET_MASTER_PORT",
        )
    ),
    JobCase(
        "torch-reserved-env",
        {"trainer": {"env": [{"name": "PET_NODE_RANK"}, {"name": "A"}, {"name": "PET_NNODES"}]}},
        {"trainer": {"env": [{"name": "A"}]}},
        'spec.trainer.env: Invalid value: ["PET_NNODES","PET_NODE_RANK"]: must not have reserved '
        "envs, invalid envs configured: [PET_NNODES PET_NODE_RANK]",
        torch(),
        variant="several",
    ),
    JobCase(
        "processes-share-devices",
        {"trainer": {"numProcPerNode": 4, "resourcesPerNode": {"limits": {GPU: "2"}}}},
        {"trainer": {"numProcPerNode": 2, "resourcesPerNode": {"limits": {GPU: "2"}}}},
        "spec.trainer.numProcPerNode: 4 processes on each node share 2 accelerators: run 2, or "
        "request more in spec.trainer.resourcesPerNode",
        torch(),
        variant="torch",
        is_warning=True,
    ),
    JobCase(
        "processes-share-devices",
        {"trainer": {"numProcPerNode": 2}},
        {"trainer": {"numProcPerNode": 1}},
        "spec.trainer.numProcPerNode: 2 processes on each node share 1 accelerator: run 1, or "
        "request more in spec.trainer.resourcesPerNode",
        torch(job_with(container={"resources": {"limits": {GPU: "1"}}})),
        variant="of the runtime's",
        is_warning=True,
    ),
    JobCase(
        "processes-share-devices",
        {},
        {"trainer": {"numProcPerNode": 1}},
        "runtime spec.mlPolicy.torch.numProcPerNode: 8 processes on each node share 1 "
        "accelerator: run 1, or request more in spec.trainer.resourcesPerNode",
        torch(
            job_with(container={"resources": {"limits": {GPU: "1"}}}),
            torch={"numProcPerNode": 8},
        ),
        variant="as set in the runtime",
        is_warning=True,
    ),
    JobCase(
        "processes-share-devices",
        {"trainer": {"numProcPerNode": 4}},
        {"trainer": {"numProcPerNode": 2}},
        "spec.trainer.numProcPerNode: 4 processes on each node share 2 accelerators: run 2, or "
        "request more in spec.trainer.resourcesPerNode",
        mpi(worker(resources={"limits": {GPU: "2"}}), launcher(), launcher_is_node=False),
        variant="mpi",
        is_warning=True,
    ),
    JobCase(
        "processes-without-effect",
        {"trainer": {"numProcPerNode": 2}},
        {"trainer": {}},
        "spec.trainer.numProcPerNode has no effect: the runtime has neither a torch nor an mpi "
        "policy",
        plain(),
        is_warning=True,
    ),
    *(
        JobCase(
            "processes-as-string",
            {"trainer": {"numProcPerNode": word}},
            {"trainer": {"numProcPerNode": 1}},
            f'spec.trainer.numProcPerNode: "{word}" is a string, which clients of Kubeflow Trainer '
            "2.2 and later (Kueue 0.17, the SDK) cannot decode: they fail to list TrainJobs. Write "
            "a number, or leave it out and set it in the runtime's mlPolicy.torch",
            torch(),
            variant=word,
            is_warning=True,
        )
        for word in ("auto", "cpu", "gpu")
    ),
    JobCase(
        "trainer-without-effect",
        {"trainer": {"image": "mine", "numNodes": 2}},
        {"trainer": {}},
        "spec.trainer: image, numNodes: no effect: no job of the <kind> "
        f"{RUNTIME} has the label {STEP}: trainer",
        torch(job_with(step=None)),
        is_warning=True,
    ),
    JobCase(
        "trainer-without-effect",
        {"trainer": {"image": "mine", "numNodes": 2, "env": [{"name": "A", "value": "b"}]}},
        {"trainer": {"numNodes": 2, "env": [{"name": "A", "value": "b"}]}},
        "spec.trainer: image: no effect: no job of the <kind> "
        f"{RUNTIME} has the label {STEP}: trainer",
        mpi(worker(), job_with("launcher", None, container={"name": "node"})),
        variant="mpi",
        is_warning=True,
    ),
    JobCase(
        "quantity-negative",
        {"trainer": {"resourcesPerNode": {"requests": {"cpu": "-1"}}}},
        {"trainer": {"resourcesPerNode": {"requests": {"cpu": "1"}}}},
        'spec.trainer.resourcesPerNode.requests[cpu]: Invalid value: "-1": must be at least 0',
        torch(),
        variant="of the trainer",
    ),
    JobCase(
        "request-above-limit",
        {"trainer": {"resourcesPerNode": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}},
        {"trainer": {"resourcesPerNode": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}},
        "spec.trainer.resourcesPerNode: the container node requests 2 of cpu, above its limit of "
        "1: the API server will reject such pods",
        torch(),
        is_warning=True,
    ),
)

METADATA = (
    JobCase(
        "metadata-for-objects",
        {"labels": {"team": "vision & speech"}},
        {"labels": {"team": "vision"}},
        f'spec.labels.team: Invalid value: "vision & speech": {WORD_WORDS}, or be empty',
        torch(),
        variant="value",
    ),
    JobCase(
        "metadata-for-objects",
        {"annotations": {"our team": "hunter2"}},
        {"annotations": {"our-team": "hunter2"}},
        f'spec.annotations[our team]: Invalid value: "our team": {WORD_WORDS}',
        torch(),
        variant="key",
    ),
    JobCase(
        "metadata-for-objects",
        {"podTemplateOverrides": override(metadata={"labels": {"our team": "a"}})},
        {"podTemplateOverrides": override(metadata={"labels": {"our-team": "a"}})},
        "spec.podTemplateOverrides[0].metadata.labels[our team]: Invalid value: "
        f'"our team": {WORD_WORDS}',
        torch(),
        variant="pods",
    ),
)

TORCHTUNE = (
    JobCase(
        "torchtune-no-model",
        tuned(),
        tuned(),
        f'spec.runtimeRef.name: Invalid value: "{RUNTIME}": must have a supported pretrained '
        "model, but the runtime names none: neither in the annotation "
        "trainer.kubeflow.org/torchtune-model, nor in its name, nor with --config in its command",
        tuning(None),
        tuning("llama3_2/1B"),
    ),
    JobCase(
        "torchtune-unknown-model",
        tuned(),
        tuned(),
        f'spec.runtimeRef.name: Invalid value: "{RUNTIME}": must have a supported pretrained '
        "model, invalid model configured: gemma/2B",
        tuning("gemma/2B"),
        tuning("llama3_2/1B"),
    ),
    JobCase(
        "torchtune-unknown-model",
        tuned(),
        tuned(),
        'spec.runtimeRef.name: Invalid value: "torchtune-gemma2-2b": must have a supported '
        "pretrained model, invalid model configured: gemma2/2B",
        with_metadata(tuning(None), name="torchtune-gemma2-2b"),
        with_metadata(tuning(None), name="torchtune-llama3.2-1b"),
        variant="by the runtime's name",
        is_named=True,
    ),
    JobCase(
        "torchtune-one-node",
        tuned(numNodes=2),
        tuned(numNodes=1),
        "spec.trainer.numNodes: Invalid value: 2: must be 1 for llama3_2/1B model",
        tuning("llama3_2/1B"),
    ),
    JobCase(
        "torchtune-one-node",
        tuned(),
        tuned(),
        "spec.trainer.numNodes: Invalid value: 2: must be 1 for qwen2_5/1.5B model: the runtime "
        "sets it in spec.mlPolicy.numNodes, unless the TrainJob sets spec.trainer.numNodes",
        with_metadata(
            torch(numNodes=2), annotations={"trainer.kubeflow.org/torchtune-model": "qwen2_5/1.5B"}
        ),
        with_metadata(
            torch(numNodes=2), annotations={"trainer.kubeflow.org/torchtune-model": "llama3_3/70B"}
        ),
        variant="as set in the runtime",
    ),
    JobCase(
        "torchtune-no-qlora",
        tuned(QLORA, numProcPerNode=1),
        tuned(LORA, numProcPerNode=1),
        f'spec.runtimeRef.name: Invalid value: "{RUNTIME}": QLoRA is not supported for '
        "qwen2_5/1.5B model",
        tuning("qwen2_5/1.5B"),
    ),
    JobCase(
        "torchtune-qlora-devices",
        tuned(QLORA, numProcPerNode=2, resourcesPerNode={"limits": {GPU: "2"}}),
        tuned(QLORA, numProcPerNode=1, resourcesPerNode={"limits": {GPU: "2"}}),
        "[spec.trainer.numProcPerNode: Invalid value: 2: must be auto or 1 for llama3_2/1B model "
        "when using QLoRA, spec.trainer.resourcesPerNode: Invalid value: "
        '{"limits":{"nvidia.com/gpu":"2"}}: must have gpu resource with value 1 for llama3_2/1B '
        "model when using QLoRA]",
        tuning("llama3_2/1B"),
        variant="processes",
    ),
    JobCase(
        "torchtune-qlora-devices",
        tuned(QLORA, resourcesPerNode={"limits": {GPU: "2"}}),
        tuned(QLORA, resourcesPerNode={"limits": {GPU: "1"}}),
        'spec.trainer.resourcesPerNode: Invalid value: {"limits":{"nvidia.com/gpu":"2"}}: must '
        "have gpu resource with value 1 for llama3_2/3B model when using QLoRA",
        tuning("llama3_2/3B"),
        variant="GPUs",
    ),
    JobCase(
        "torchtune-lora-one-node",
        tuned(LORA, numNodes=2),
        tuned(numNodes=2),
        "spec.trainer.numNodes: Invalid value: 2: LoRA fine-tuning is not supported for "
        "multi-node training in TorchTune",
        tuning("llama3_3/70B"),
    ),
    *(
        JobCase(
            "torchtune-immutable-config",
            tuned("epochs=1", f"{key}=/secret/place"),
            tuned("epochs=1", f"my_{key}=/secret/place"),
            f'spec.trainer.args[1]: Invalid value: "{key}": must not set immutable config "{key}" '
            "in trainer args; it is managed by the runtime",
            tuning("llama3_2/1B"),
            variant=key,
        )
        for key in (
            "output_dir",
            "tokenizer.path",
            "tokenizer.merges_file",
            "checkpointer.checkpoint_dir",
        )
    ),
)

MPI = (
    JobCase(
        "mpi-processes",
        {"trainer": {"numProcPerNode": "auto"}},
        {"trainer": {"numProcPerNode": 2}},
        'spec.trainer.numProcPerNode: Invalid value: "auto": must have an int value for MPI '
        "TrainJob",
        mpi(),
    ),
    JobCase(
        "mpi-one-node",
        {"trainer": {"numNodes": 2}},
        {"trainer": {"numNodes": 1}},
        "spec.trainer.numNodes: Invalid value: 2: must have 1 when MPI trainingRuntime with "
        "enabled runLauncherAsNode does not have either launcher and node",
        mpi(launcher()),
    ),
    JobCase(
        "mpi-one-node",
        {},
        {"trainer": {"numNodes": 1}},
        "spec.trainer.numNodes: Invalid value: 3: must have 1 when MPI trainingRuntime with "
        "enabled runLauncherAsNode does not have either launcher and node",
        mpi(launcher(), nodes=3),
        variant="as set in the runtime",
    ),
    JobCase(
        "mpi-one-node",
        {**of_old(NO_WORKERS), "trainer": {"numNodes": 2}},
        {"trainer": {"numNodes": 2}},
        f"[spec.runtimeRef: Invalid value: {ref_text('ClusterTrainingRuntime', NO_WORKERS)}: "
        f"ClusterTrainingRuntime {NO_WORKERS}: spec.template.spec.replicatedJobs: Required value: "
        "a job named node: the launcher is not a node, spec.trainer.numNodes: Invalid value: 2: "
        "must be 1 when the MPI runtime has no job named node]",
        mpi(launcher_is_node=False),
        mpi(launcher_is_node=False),
        variant="without workers",
    ),
    *(
        JobCase(
            "mpi-reserved-env",
            {"trainer": {"env": [{"name": name, "value": "hunter2"}]}},
            {"trainer": {"env": [{"name": f"MY_{name}", "value": "hunter2"}]}},
            f'spec.trainer.env: Invalid value: ["{name}"]: must not have reserved envs, invalid '
            f"envs configured: [{name}]",
            mpi(),
            variant=name,
        )
        for name in (
            "OMPI_MCA_orte_default_hostfile",
            "OMPI_MCA_orte_keep_fqdn_hostnames",
            "OMPI_MCA_orte_set_default_slots",
            "OMPI_MCA_plm_rsh_args",
            "PRTE_MCA_prte_default_hostfile",
            "PRTE_MCA_prte_keep_fqdn_hostnames",
            "PRTE_MCA_prte_set_default_slots",
            "PRTE_MCA_plm_ssh_args",
        )
    ),
    JobCase(
        "mpi-reserved-env",
        {
            "podTemplateOverrides": [
                {
                    "targetJobs": [{"name": "launcher"}],
                    "spec": {
                        "containers": [
                            {
                                "name": "launcher",
                                "env": [{"name": "OMPI_MCA_plm_rsh_args", "value": "hunter2"}],
                            }
                        ]
                    },
                }
            ]
        },
        {
            "podTemplateOverrides": [
                {
                    "targetJobs": [{"name": "launcher"}],
                    "spec": {
                        "containers": [
                            {"name": "launcher", "env": [{"name": "A", "value": "hunter2"}]}
                        ]
                    },
                }
            ]
        },
        f'{OVERRIDES}[0].spec.containers[0].env: Invalid value: ["OMPI_MCA_plm_rsh_args"]: must '
        "not have reserved envs, invalid envs configured: [OMPI_MCA_plm_rsh_args]",
        mpi(worker(), launcher("launcher")),
        variant="in an override",
    ),
    JobCase(
        "mpi-hostfile-too-large",
        {"trainer": {"numNodes": 100_000}},
        {"trainer": {"numNodes": 1_000}},
        "spec.trainer.numNodes: Invalid value: 100000: the hostfile for this number of nodes does "
        "not fit into a ConfigMap",
        mpi(),
    ),
    JobCase(
        "runtime-unusable",
        of_old(NO_WORKERS),
        {},
        f"spec.runtimeRef: Invalid value: {ref_text('ClusterTrainingRuntime', NO_WORKERS)}: "
        f"ClusterTrainingRuntime {NO_WORKERS}: spec.template.spec.replicatedJobs: Required value: "
        "a job named node: the launcher is not a node",
        mpi(),
        mpi(),
        variant="mpi",
    ),
)

GANGS = (
    JobCase(
        "volcano-queue",
        {"annotations": {QUEUE: ""}},
        {"annotations": {QUEUE: "research"}},
        f'spec.annotations[{QUEUE}]: Invalid value: "": Volcano queue name must not be empty',
        volcano(),
    ),
    JobCase(
        "volcano-priority",
        {},
        {},
        f'spec.runtimeRef: Invalid value: {REFERENCE}: PriorityClass "urgent" doesn\'t exist: '
        'PriorityClass.scheduling.k8s.io "urgent" not found',
        volcano(priorityClassName="urgent"),
        volcano(priorityClassName="system-node-critical"),
    ),
)

PATCHING = (
    JobCase(
        "patch-manager",
        patch(manager="tuner", nodeSelector={"a": "b"}),
        patch(nodeSelector={"a": "b"}),
        f'{PATCH}.manager: Invalid value: "tuner": must be a domain-prefixed path (such as '
        '"acme.io/foo")',
        torch(),
    ),
    JobCase(
        "patch-unknown-job",
        patch("nodes", nodeSelector={"a": "b"}),
        patch(nodeSelector={"a": "b"}),
        f'{PATCHED}.name: Invalid value: "nodes": must not have replicated job that doesn\'t exist '
        "in the runtime job template",
        torch(),
    ),
    *(
        JobCase(
            "patch-unknown-container",
            patch(**{field: [{"name": "typo", **MOUNTING}], **VOLUMES}),
            patch(**{field: [{"name": known, **MOUNTING}], **VOLUMES}),
            f'{PATCHED_POD}.{field}[0].name: Invalid value: "typo": must not have {noun} that '
            "doesn't exist in the runtime job node",
            torch(job_with(pod={"initContainers": [{"name": "fetch", "image": "fetch"}]})),
            variant=noun,
        )
        for field, noun, known in (
            ("containers", "container", "node"),
            ("initContainers", "initContainer", "fetch"),
        )
    ),
    JobCase(
        "patch-step",
        patch(of_job={"labels": {STEP: "model-initializer"}}),
        patch(of_job={"labels": {STEP: "trainer"}}),
        f'{PATCHED}.template.metadata.labels[{STEP}]: Invalid value: "model-initializer": the '
        "runtime sets this label, and a TrainJob cannot change it",
        torch(),
    ),
    *(
        JobCase(
            "patch-step-env",
            patch(step, containers=[{"name": step, "env": [{"name": "A", "value": "hunter2"}]}]),
            {},
            f'{PATCHED_POD}.containers[0].env: Invalid value: ["A"]: must not have envs for the '
            "dataset-initializer, model-initializer, node containers",
            initializing("dataset-initializer", "model-initializer"),
            variant=step,
        )
        for step in ("node", "dataset-initializer", "model-initializer")
    ),
    JobCase(
        "patch-too-much",
        {
            "runtimePatches": [
                each
                for index in range(16)
                for each in patch(
                    manager=f"acme.io/{index}",
                    volumes=[{"name": f"v{index}-{n}"} for n in range(80)],
                )["runtimePatches"]
            ]
        },
        patch(volumes=[{"name": "v"}]),
        f"{PATCH.removesuffix('[0]')}: Forbidden: must be fewer or smaller: merging them into all "
        "their jobs takes too long",
        torch(),
    ),
    JobCase(
        "mpi-reserved-env",
        patch(
            "launcher",
            containers=[{"name": "launcher", "env": [{"name": "OMPI_MCA_plm_rsh_args"}]}],
        ),
        patch("launcher", containers=[{"name": "launcher", "env": [{"name": "A", "value": "a"}]}]),
        f'{PATCHED_POD}.containers[0].env: Invalid value: ["OMPI_MCA_plm_rsh_args"]: must not have '
        "reserved envs, invalid envs configured: [OMPI_MCA_plm_rsh_args]",
        mpi(worker(), launcher("launcher")),
        variant="in a runtime patch",
    ),
)

OVERRIDING = (
    JobCase(
        "override-unknown-job",
        {"podTemplateOverrides": [{"targetJobs": [*NODE, {"name": "nodes"}]}]},
        {"podTemplateOverrides": [{"targetJobs": NODE, "metadata": {"labels": {"a": "b"}}}]},
        f'{OVERRIDES}[0].targetJobs[1].name: Invalid value: "nodes": must not have targetJob that '
        "doesn't exist in the runtime job template",
        torch(),
    ),
    JobCase(
        "override-unknown-job",
        {"podSpecOverrides": [{"targetJobs": [{"name": "nodes"}]}]},
        {"podSpecOverrides": [{"targetJobs": NODE, "serviceAccountName": "me"}]},
        f'{OLD_OVERRIDES}[0].targetJobs[0].name: Invalid value: "nodes": must not have targetJob '
        "that doesn't exist in the runtime job template",
        torch(),
        variant="of 2.0",
    ),
    *(
        JobCase(
            "override-unknown-container",
            {
                "podTemplateOverrides": override(
                    spec={field: [{"name": "typo", **MOUNTING}], **VOLUMES}
                )
            },
            {
                "podTemplateOverrides": override(
                    spec={field: [{"name": known, **MOUNTING}], **VOLUMES}
                )
            },
            f'{OVERRIDES}[0].spec.{field}[0].name: Invalid value: "typo": must not have {noun} '
            "that doesn't exist in the runtime job node",
            torch(job_with(pod={"initContainers": [{"name": "fetch", "image": "fetch"}]})),
            variant=noun,
        )
        for field, noun, known in (
            ("containers", "container", "node"),
            ("initContainers", "initContainer", "fetch"),
        )
    ),
    JobCase(
        "override-unknown-container",
        {"podSpecOverrides": override(containers=[{"name": "typo"}])},
        {"podSpecOverrides": override(serviceAccountName="me")},
        f'{OLD_OVERRIDES}[0].containers[0].name: Invalid value: "typo": must not have container '
        "that doesn't exist in the runtime job node",
        torch(),
        variant="of 2.0",
    ),
    JobCase(
        "override-step-env",
        {
            "podTemplateOverrides": override(
                spec={"containers": [{"name": "node", "env": [{"name": "A", "value": "hunter2"}]}]}
            )
        },
        {"trainer": {"env": [{"name": "A", "value": "hunter2"}]}},
        f'{OVERRIDES}[0].spec.containers[0].env: Invalid value: ["A"]: must not have envs for the '
        "dataset-initializer, model-initializer, node containers",
        torch(),
        variant="node",
    ),
    *(
        JobCase(
            "override-step-env",
            {
                "podTemplateOverrides": [
                    {
                        "targetJobs": [{"name": step}],
                        "spec": {"containers": [{"name": step, "env": [{"name": "A"}]}]},
                    }
                ]
            },
            {},
            f'{OVERRIDES}[0].spec.containers[0].env: Invalid value: ["A"]: must not have envs for '
            "the dataset-initializer, model-initializer, node containers",
            initializing(step),
            variant=step,
        )
        for step in ("dataset-initializer", "model-initializer")
    ),
    JobCase(
        "override-step-env",
        {"podSpecOverrides": override(containers=[{"name": "node", "env": [{"name": "A"}]}])},
        {"trainer": {"env": [{"name": "A"}]}},
        f'{OLD_OVERRIDES}[0].containers[0].env: Invalid value: ["A"]: must not have envs for the '
        "dataset-initializer, model-initializer, node containers",
        torch(),
        variant="of 2.0",
    ),
    JobCase(
        "quantity-negative",
        {
            "podTemplateOverrides": override(
                spec={"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "-1Gi"}}]}
            )
        },
        {
            "podTemplateOverrides": override(
                spec={"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}]}
            )
        },
        f'{OVERRIDES}[0].spec.volumes[0].emptyDir.sizeLimit: Invalid value: "-1Gi": must be at '
        "least 0",
        torch(),
        variant="of an override",
    ),
    JobCase(
        "override-changes-nothing",
        {"podTemplateOverrides": override(spec={"serviceAccountName": "trainer"})},
        {"podTemplateOverrides": override(spec={"serviceAccountName": "other"})},
        f"{OVERRIDES}[0] has no effect: the pods of its jobs already have these values",
        torch(job_with(pod={"serviceAccountName": "trainer"})),
        is_warning=True,
    ),
    JobCase(
        "override-changes-nothing",
        {"podSpecOverrides": [{"targetJobs": NODE}]},
        {"podSpecOverrides": [{"targetJobs": NODE, "serviceAccountName": "other"}]},
        f"{OLD_OVERRIDES}[0] has no effect: the pods of its jobs already have these values",
        torch(),
        variant="of 2.0",
        is_warning=True,
    ),
    JobCase(
        "override-undone",
        {
            "podTemplateOverrides": [
                *override(spec={"serviceAccountName": "first"}),
                *override(spec={"serviceAccountName": "second"}),
            ]
        },
        {
            "podTemplateOverrides": [
                *override(spec={"nodeSelector": {"a": "b"}}),
                *override(spec={"serviceAccountName": "second"}),
            ]
        },
        f"{OVERRIDES}[0] has no effect: later overrides replace all of its values",
        torch(),
        is_warning=True,
    ),
)

LARGE = (
    JobCase(
        "override-too-much",
        {
            "podTemplateOverrides": [
                each
                for index in range(80)
                for each in override(
                    spec={"volumes": [{"name": f"v{index}-{n}"} for n in range(10)]}
                )
            ]
        },
        {"podTemplateOverrides": override(spec={"volumes": [{"name": "v"}]})},
        "spec.podTemplateOverrides: Forbidden: must be fewer or smaller: merging them into all "
        "their jobs takes too long",
        torch(),
    ),
)

JOB_SETS = (
    JobCase(
        "jobset-refuses",
        of_old(FIRST_DEPENDS),
        {},
        f"spec.runtimeRef: Invalid value: {ref_text('ClusterTrainingRuntime', FIRST_DEPENDS)}: "
        "JobSet would reject the JobSet: spec.replicatedJobs[0].dependsOn: DependsOn can't be set "
        "for the first ReplicatedJob; the field is spec.template.spec.replicatedJobs[0].dependsOn "
        f"of ClusterTrainingRuntime {FIRST_DEPENDS}",
        torch(),
        torch(),
        variant="dependsOn",
    ),
)

JOB_CASES: tuple[JobCase, ...] = (
    *ABOUT_RUNTIMES,
    *NAMES,
    *INITIALIZERS,
    *TRAINERS,
    *METADATA,
    *TORCHTUNE,
    *MPI,
    *GANGS,
    *OVERRIDING,
    *PATCHING,
    *LARGE,
    *JOB_SETS,
)
