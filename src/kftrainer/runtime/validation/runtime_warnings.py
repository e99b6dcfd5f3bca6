"""Warnings about runtimes that are valid but deprecated, or likely contain a mistake."""

from collections.abc import Iterator

from kftrainer.api import names
from kftrainer.api.schema.not_served import unserved_fields
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.podset import NodeLayout
from kftrainer.runtime.template import JOBS_PATH, STEPS
from kftrainer.runtime.validation.runtime_jobs import RuntimeJob, whole_jobs
from kftrainer.runtime.validation.trainjob_warnings import TRAINER_LABEL

INITIALIZERS = {
    names.STEP_DATASET_INITIALIZER: "spec.initializer.dataset",
    names.STEP_MODEL_INITIALIZER: "spec.initializer.model",
}
LABEL = names.LABEL_ANCESTOR_STEP
TEMPLATE = "spec.template"
DEPRECATION_POLICY = (
    "https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime/"
    "#runtime-deprecation-policy"
)


def deprecation(runtime: AnyRuntime) -> str | None:
    """Return a warning if the runtime is labelled as deprecated; starts with kind and name."""
    labels = runtime.metadata.labels or {}
    if labels.get(names.LABEL_SUPPORT) != names.SUPPORT_DEPRECATED:
        return None
    return (
        f'{runtime.kind} "{runtime.metadata.name}" is deprecated and will be removed in a future '
        f"release of Kubeflow Trainer. See runtime deprecation policy: {DEPRECATION_POLICY}"
    )


def runtime_hints(runtime: AnyRuntime, layout: NodeLayout) -> Iterator[str]:
    """Yield the warnings about a runtime that has no errors."""
    jobs = whole_jobs(runtime)
    yield from _sdk_hints(runtime, layout, jobs)
    yield from _label_hints(jobs)
    for job in jobs:
        yield from _count_hints(runtime, layout, job, jobs)
    yield from _unserved_hints(runtime)
    yield from _suspend_hints(runtime)


def framework_hints(runtime: AnyRuntime) -> Iterator[str]:
    """Yield a warning if the runtime lacks the label that the Kubeflow SDK requires."""
    if not (runtime.metadata.labels or {}).get(names.LABEL_FRAMEWORK):
        yield (
            f"metadata.labels: without the label {names.LABEL_FRAMEWORK} the Kubeflow SDK does not "
            "list the runtime, and cannot list TrainJobs while one uses it"
        )


def _sdk_hints(runtime: AnyRuntime, layout: NodeLayout, jobs: list[RuntimeJob]) -> Iterator[str]:
    """Yield warnings about valid runtimes that the Kubeflow SDK cannot read."""
    yield from framework_hints(runtime)
    if runtime.spec is not None and runtime.spec.ml_policy is None:
        yield "spec.mlPolicy: the Kubeflow SDK cannot read runtimes without it: set it to {}"
    if all(job.step != names.STEP_TRAINER for job in jobs):
        has_workers = layout.worker is not None
        fields = "image, command and args in spec.trainer" if has_workers else "spec.trainer"
        yield (
            f"{JOBS_PATH}: no job has the label {TRAINER_LABEL}: {fields} of TrainJobs will have "
            "no effect, and the Kubeflow SDK cannot read the runtime"
        )


def _label_hints(jobs: list[RuntimeJob]) -> Iterator[str]:
    """Yield warnings about jobs that appear to be a step of a TrainJob but are not."""
    steps = {job.step for job in jobs}
    for job in jobs:
        path = f"{job.path}.template.metadata.labels"
        if job.step is not None and job.step not in STEPS:
            yield (
                f"{path}[{LABEL}]: {job.step} has no effect: it must be one of {', '.join(STEPS)}"
            )
        elif job.step is None and job.name in INITIALIZERS and job.name not in steps:
            yield (
                f"{path}: TrainJobs cannot use {INITIALIZERS[job.name]} unless the job {job.name} "
                f"has the label {LABEL}: {job.name}"
            )


def _count_hints(
    runtime: AnyRuntime, layout: NodeLayout, job: RuntimeJob, jobs: list[RuntimeJob]
) -> Iterator[str]:
    """Yield warnings about numbers of pods that planning replaces."""
    parallelism = job.job_spec.get("parallelism")
    nodes = nodes_of(runtime, layout, job, jobs)
    if nodes is not None and parallelism is not None and parallelism != nodes:
        yield (
            f"{job.path}.template.spec.parallelism: {parallelism} has no effect: there are {nodes} "
            "pods because of spec.mlPolicy.numNodes, unless the TrainJob sets numNodes"
        )
    pods = next(count for count in (nodes, parallelism, 1) if count is not None)
    completions = job.job_spec.get("completions")
    if completions is not None and completions != pods:
        yield (
            f"{job.path}.template.spec.completions: {completions} has no effect: "
            f"it is always the number of pods ({pods})"
        )


def nodes_of(
    runtime: AnyRuntime, layout: NodeLayout, job: RuntimeJob, jobs: list[RuntimeJob]
) -> int | None:
    """Return the number of pods that the mlPolicy sets for the job; None if it does not."""
    ml_policy = runtime.spec.ml_policy if runtime.spec else None
    if ml_policy is None:
        return None
    if layout.worker is None:
        return (ml_policy.num_nodes or 1) if job.step == names.STEP_TRAINER else None
    if job.name != layout.worker or ml_policy.num_nodes is None:
        return None
    has_launcher = any(each.name == layout.launcher for each in jobs)
    return layout.workers(ml_policy.num_nodes, has_launcher=has_launcher)


def _unserved_hints(runtime: AnyRuntime) -> Iterator[str]:
    """Yield warnings about fields of other releases that never had an effect."""
    for field in unserved_fields(runtime.spec, "spec") if runtime.spec else ():
        yield f"{field.path}: has no effect: {field.marker.message}"


def _suspend_hints(runtime: AnyRuntime) -> Iterator[str]:
    template = runtime.spec.template if runtime.spec else None
    if template and (template.spec or {}).get("suspend"):
        yield f"{TEMPLATE}.spec.suspend: has no effect: spec.suspend of each TrainJob is used"
