"""Validates runtimes with an mpi policy."""

from collections.abc import Iterator

from kftrainer.api import names
from kftrainer.api.trainingruntime import MPIPolicy
from kftrainer.kube.objects.field_errors import FieldError, invalid, required
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.plugins.mpi.implementations import IMPLEMENTATIONS, is_known
from kftrainer.runtime.plugins.mpi.layout import layout_of
from kftrainer.runtime.plugins.mpi.rules import MPIRule
from kftrainer.runtime.template import JOBS_PATH
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.runtime_jobs import whole_jobs

JOBS = (names.JOB_NODE, names.JOB_LAUNCHER)  # jobs that MPI runs in


def mpi_errors(runtime: AnyRuntime, policy: MPIPolicy) -> Iterator[FieldError]:
    """Yield errors that prevent every TrainJob from using MPI with this runtime."""
    if not is_known(policy):
        detail = f"must be one of {', '.join(IMPLEMENTATIONS)}"
        where = "spec.mlPolicy.mpi.mpiImplementation"
        yield invalid(where, policy.mpi_implementation, detail, rule=Rule.SCHEMA)
    jobs, layout = whole_jobs(runtime), layout_of(policy)
    has_workers = any(job.name == names.JOB_NODE for job in jobs)
    if jobs and not has_workers and not policy.run_launcher_as_node:
        detail = f"a job named {names.JOB_NODE}: the launcher is not a node"
        yield required(JOBS_PATH, detail, rule=MPIRule.RUNTIME_MPI_WORKERS)
    for job in jobs:
        accepted = layout.container_names(job.name)
        if job.name in JOBS and not any(name in accepted for name in job.containers):
            detail = f"a container named {names.CONTAINER_NODE}, which gets the keys"
            where = f"{job.pod_path}.containers"
            yield required(where, detail, rule=MPIRule.RUNTIME_MPI_CONTAINER)
