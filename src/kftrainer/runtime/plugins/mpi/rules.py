"""Names of the admission rules of the MPI plugin."""

from enum import StrEnum


class MPIRule(StrEnum):
    """The rule that an error of the plugin belongs to; docs/admission.md describes each."""

    MPI_PROCESSES = "mpi-processes"
    MPI_ONE_NODE = "mpi-one-node"
    MPI_RESERVED_ENV = "mpi-reserved-env"
    MPI_HOSTFILE_TOO_LARGE = "mpi-hostfile-too-large"
    RUNTIME_MPI_WORKERS = "runtime-mpi-workers"
    RUNTIME_MPI_CONTAINER = "runtime-mpi-container"
