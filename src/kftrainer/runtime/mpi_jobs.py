"""What MPI needs of a runtime, whatever the TrainJob."""

from collections.abc import Iterator

from kftrainer.api import names
from kftrainer.api.trainingruntime import MPIPolicy
from kftrainer.kube.field import FieldError, invalid, required
from kftrainer.runtime.info import AnyRuntime, container_names
from kftrainer.runtime.runtime_jobs import whole_jobs
from kftrainer.runtime.template import JOBS_PATH

OPEN_MPI = ("OpenMPI", "")
JOBS = (names.JOB_NODE, names.JOB_LAUNCHER)  # those that MPI runs in


def mpi_errors(runtime: AnyRuntime, policy: MPIPolicy) -> Iterator[FieldError]:
    """Why no TrainJob can train with MPI on this runtime."""
    implementation: str = policy.mpi_implementation
    if implementation not in OPEN_MPI:
        detail = f"must be {OPEN_MPI[0]}, which is the only implementation that is supported"
        yield invalid("spec.mlPolicy.mpi.mpiImplementation", implementation, detail)
    jobs = whole_jobs(runtime)
    has_workers = any(job.name == names.JOB_NODE for job in jobs)
    if jobs and not has_workers and not policy.run_launcher_as_node:
        yield required(JOBS_PATH, f"a job named {names.JOB_NODE}: the launcher is no node")
    for job in jobs:
        accepted = container_names(job.name, policy)
        if job.name in JOBS and not any(name in accepted for name in job.containers):
            detail = f"a container named {names.CONTAINER_NODE}, which gets the keys"
            yield required(f"{job.pod_path}.containers", detail)
