"""Warnings for runtimes in which no job has the step `trainer`, and for TrainJobs on them."""

from collections.abc import Iterator

from kftrainer.api import names
from kftrainer.api.trainingruntime import MPIPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import NO_TRAINER, Info

TRAINER_LABEL = f"{names.LABEL_ANCESTOR_STEP}: {names.STEP_TRAINER}"
# What MPI uses without a trainer: the first for the hostfile, the others in the job `node`.
MPI_FIELDS = frozenset({"numProcPerNode"})
MPI_NODE_FIELDS = frozenset({"numNodes", "env", "resourcesPerNode"})


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
    if not isinstance(info.policy, MPIPolicy):
        return frozenset()
    has_node = info.pod_set(names.JOB_NODE) is not None
    return MPI_FIELDS | (MPI_NODE_FIELDS if has_node else frozenset())
