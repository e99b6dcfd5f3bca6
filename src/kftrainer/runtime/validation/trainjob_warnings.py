"""Warnings about TrainJobs that are valid but likely contain a mistake."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.api import names
from kftrainer.api.configuration import Admission
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult, invalid, shown
from kftrainer.kube.objects.quantity import Quantity
from kftrainer.runtime.info import NO_TRAINER, Info
from kftrainer.runtime.patches.pod_patches import LEGACY, MODERN, PATCHES_PATH, pod_patches
from kftrainer.runtime.podset import Container
from kftrainer.runtime.resources.quantities import HALVES
from kftrainer.runtime.validation.rules import Rule


def oversubscribed_devices(processes: int | str, source: str, devices: int) -> Iterator[str]:
    """Yield a warning if a node has more processes than `devices`, its accelerators.

    `source` is the field that sets the number of processes.
    """
    if isinstance(processes, int) and processes > devices > 0:
        noun = "accelerator" if devices == 1 else "accelerators"
        yield (
            f"{source}: {processes} processes on each node share {devices} {noun}: "
            f"run {devices}, or request more in spec.trainer.resourcesPerNode"
        )


def requests_above_limits(container: Container, own: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a warning for each request of a container that exceeds its limit.

    `own` are the TrainJob's own resources, which are merged into the container's.
    """
    limits, requests = (container.resources.get(half) or {} for half in HALVES)
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is not None and Quantity.parse(request) > Quantity.parse(limit):
            is_own = any(name in ((own or {}).get(half) or ()) for half in HALVES)
            yield (
                f"{'spec.trainer.resourcesPerNode' if is_own else 'spec.runtimeRef'}: "
                f"the container {container.name} requests {request} of {name}, above its limit of "
                f"{limit}: the API server will reject such pods"
            )


TRAINER_LABEL = f"{names.LABEL_ANCESTOR_STEP}: {names.STEP_TRAINER}"
# Fields that are used without a trainer if workers train: the first by the plugin, the others in
# the pods of the workers.
LAUNCH_FIELDS = frozenset({"numProcPerNode"})
WORKER_FIELDS = frozenset({"numNodes", "env", "resourcesPerNode", "resourceClaimsPerNode"})


def unused_trainer_fields(info: Info, job: TrainJob) -> Iterator[str]:
    """Yield a warning if the TrainJob sets fields of `spec.trainer` that nothing uses."""
    if info.trainer is not None:
        return
    used = _used_fields(info)
    unused = [field for field in (job.spec.trainer or NO_TRAINER).dump() if field not in used]
    if unused:
        runtime = f"{info.runtime.kind} {info.runtime.metadata.name}"
        why = f"no job of the {runtime} has the label {TRAINER_LABEL}"
        yield f"spec.trainer: {', '.join(unused)}: no effect: {why}"


def _used_fields(info: Info) -> frozenset[str]:
    if info.layout.worker is None:
        return frozenset()
    return LAUNCH_FIELDS if info.worker is None else LAUNCH_FIELDS | WORKER_FIELDS


LOST_IN_QUEUE = (
    "{}: lost when Kueue up to 0.19 admits the TrainJob: set the values in the runtime or in other "
    "fields of spec.runtimePatches"
)
LOST_FIELDS = ("labels", "annotations", MODERN, LEGACY)
LOST_IN_PATCHES = ("resourceClaims", "terminationGracePeriodSeconds")


def fields_lost_in_queue(job: TrainJob) -> Iterator[str]:
    """Yield a warning if a queued TrainJob has fields that Kueue does not write back.

    On admission, Kueue up to 0.19 replaces the spec in the form of Kubeflow Trainer 2.2.
    """
    if not (job.metadata.labels or {}).get(names.LABEL_QUEUE):
        return
    spec = job.spec.dump()
    lost = [f"spec.{field}" for field in LOST_FIELDS if spec.get(field)]
    if (job.spec.trainer or NO_TRAINER).resource_claims_per_node:
        lost.append("spec.trainer.resourceClaimsPerNode")
    lost += _lost_in_patches(job)
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield LOST_IN_QUEUE.format(f"{lost[0]}{more}")


def _lost_in_patches(job: TrainJob) -> Iterator[str]:
    """Yield the paths of fields of runtime patches that Kubeflow Trainer 2.2 does not have."""
    for patch in pod_patches(job):
        if patch.field != PATCHES_PATH:
            continue
        yield from (f"{patch.spec_path}.{key}" for key in LOST_IN_PATCHES if key in patch.spec)
        for containers in ("initContainers", "containers"):
            for index, container in enumerate(patch.spec.get(containers) or ()):
                if "resources" in container:
                    yield f"{patch.spec_path}.{containers}[{index}].resources"


PROCESSES = "spec.trainer.numProcPerNode"
CLIENTS = "clients of Kubeflow Trainer 2.2 and later (Kueue 0.17, the SDK)"
INSTEAD = "a number, or leave it out and set it in the runtime's mlPolicy.torch"


def string_processes(old: TrainJob | None, new: TrainJob, admission: Admission) -> ValidationResult:
    """Warn about a string in numProcPerNode, or reject it, depending on the configuration.

    Release 2.1 accepts a string. Later clients decode an integer, and a single TrainJob that they
    cannot decode makes list requests fail: the SDK's in its namespace, Kueue's everywhere.
    """
    value = (new.spec.trainer or NO_TRAINER).num_proc_per_node
    if not isinstance(value, str):
        return ValidationResult()
    if admission.string_num_proc_per_node == "Reject":
        detail = f"must be an integer: {CLIENTS} cannot decode a string: write {INSTEAD}"
        return ValidationResult(
            [invalid(PROCESSES, value, detail, rule=Rule.PROCESSES_NOT_INTEGER)]
        )
    if old is not None and (old.spec.trainer or NO_TRAINER).num_proc_per_node == value:
        return ValidationResult()
    warning = (
        f"{PROCESSES}: {shown(value)} is a string, which {CLIENTS} cannot decode: they fail to "
        f"list TrainJobs. Write {INSTEAD}"
    )
    return ValidationResult(warnings=[warning])
