"""Rules of admission, each with an object that breaks it and one beside it that does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.objects import Object, replicated_job, train_job
from tests.support.objects import runtime as runtime_of

# Placeholders in expected texts for a runtime's name and for a reference to it.
RUNTIME, REFERENCE = "<runtime>", "<runtimeRef>"
GROUP = "trainer.kubeflow.org"
STEP = f"{GROUP}/trainjob-ancestor-step"
NODE = [{"name": "node"}]
KINDS = ("TrainingRuntime", "ClusterTrainingRuntime")


@dataclass(frozen=True, slots=True)
class JobCase:
    """A rule about TrainJobs.

    `wrong` and `right` are specs that differ in one point; where that point is in the runtime,
    `wrong` refers to `runtime` and `right` to `other`.
    """

    rule: str
    wrong: Object
    right: Object
    message: str
    runtime: Object | None
    other: Object | None = None
    variant: str = ""
    is_warning: bool = False
    name: str = "train"
    right_name: str = "train"
    is_named: bool = False  # whether the name of the runtime matters

    @property
    def changes(self) -> bool:
        """Whether an update can break the rule: names and runtimes of TrainJobs stay."""
        return self.runtime is not None and self.other is None and self.name == self.right_name

    def __str__(self) -> str:
        return f"{self.rule} {self.variant}".strip()


@dataclass(frozen=True, slots=True)
class RuntimeCase:
    """A rule about runtimes of either kind."""

    rule: str
    wrong: Object
    right: Object
    message: str
    variant: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.rule} {self.variant}".strip()


def reference(kind: str, name: str) -> Object:
    """A runtimeRef with nothing left out."""
    return {"name": name, "apiGroup": GROUP, "kind": kind}


def job_on(kind: str, runtime: str, namespace: str, *, name: str = "train", **spec: Any) -> Object:
    """A TrainJob on this runtime."""
    job = train_job(name, runtimeRef=reference(kind, runtime), **spec)
    job["metadata"]["namespace"] = namespace
    return job


def expected(text: str, kind: str, name: str) -> str:
    """The expected message about this runtime."""
    message = f'{{"name":"{name}","apiGroup":"{GROUP}","kind":"{kind}"}}'
    return text.replace(REFERENCE, message).replace(RUNTIME, name)


def job_of(case: JobCase, spec: Object, kind: str, name: str, namespace: str) -> Object:
    """A TrainJob of this spec on the runtime of this name."""
    job = train_job(case.name if spec is case.wrong else case.right_name)
    job["metadata"]["namespace"] = namespace
    job["spec"] = {"runtimeRef": reference(kind, name), **spec}
    return job


def placed(manifest: Object, kind: str, name: str, namespace: str) -> Object:
    """The runtime as one of this kind and name."""
    metadata = {**manifest["metadata"], "name": name}
    if kind == "TrainingRuntime":
        metadata["namespace"] = namespace
    return {**manifest, "kind": kind, "metadata": metadata}


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """The merge patch that makes one of the other."""
    patch: Object = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif value != before:
            patch[key] = value
    return patch


def pod_of(job: Object) -> Object:
    """The spec of a replicated job's pods."""
    pod: Object = job["template"]["spec"]["template"]["spec"]
    return pod


def with_template(manifest: Object, **fields: Any) -> Object:
    """The runtime with more in its JobSet's spec."""
    template = {**manifest["spec"]["template"]["spec"], **fields}
    return {**manifest, "spec": {**manifest["spec"], "template": {"spec": template}}}


def with_metadata(manifest: Object, **fields: Any) -> Object:
    """The runtime with more in its metadata."""
    return {**manifest, "metadata": {**manifest["metadata"], **fields}}


def job_with(
    name: str = "node",
    step: str | None = "trainer",
    *,
    container: Object | None = None,
    pod: Object | None = None,
    spec: Object | None = None,
    **fields: Any,
) -> Object:
    """A replicated job with more in its container, its pods, its Jobs or itself."""
    job = replicated_job(name, step)
    pod_of(job)["containers"][0].update(container or {})
    pod_of(job).update(pod or {})
    job["template"]["spec"].update(spec or {})
    return {**job, **fields}


def torch(*jobs: Object, **policy: Any) -> Object:
    """A runtime for torch."""
    return runtime_of(jobs=list(jobs) or None, mlPolicy={"numNodes": 1, "torch": {}, **policy})


def plain(*jobs: Object) -> Object:
    """A runtime without a framework."""
    return runtime_of(jobs=list(jobs) or None, mlPolicy={"numNodes": 1})


def mpi(*jobs: Object, launcher_is_node: bool = True, nodes: int = 1, **policy: Any) -> Object:
    """A runtime for MPI: a launcher and workers, unless the jobs are given."""
    fields = {"runLauncherAsNode": launcher_is_node, **policy}
    replicated_jobs = [*jobs] or [worker(), launcher()]
    return runtime_of(jobs=replicated_jobs, mlPolicy={"numNodes": nodes, "mpi": fields})


def worker(**container: Any) -> Object:
    """The job of MPI's workers."""
    return job_with("node", None, container=container)


def launcher(container: str = "node") -> Object:
    """The job of MPI's launcher."""
    return job_with("launcher", "trainer", container={"name": container})
