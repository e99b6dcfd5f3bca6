"""What each MPI implementation reads: environment variables and the lines of the hostfile."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kftrainer.api.trainingruntime import MPIPolicy

HOSTFILE = "hostfile"
HOSTFILE_DIRECTORY = "/etc/mpi"
HOSTFILE_PATH = f"{HOSTFILE_DIRECTORY}/{HOSTFILE}"
SSH_ARGS = "-o ConnectionAttempts=10"
SLOTS: Final = None  # the value of a variable that is the number of slots of a host
# The interface that container runtimes give a pod. Hydra's proxies connect to its address; without
# it they connect to the host name of the launcher, which only the launcher can resolve.
POD_INTERFACE = "eth0"
# With more hosts, the daemons of Open MPI 5 start each other, with host names without a domain and
# SSH arguments cut off at the equals sign.
LARGEST_FLAT_LAUNCH = 64

Variable = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Implementation:
    """The variables and the hostfile of one implementation."""

    slots_separator: str  # between the name of a host and its slots
    variables: Sequence[Variable]  # reserved
    # Reserved variables that JobSets of earlier releases do not have.
    newer_variables: Sequence[Variable] = ()
    # Variables that the runtime or the TrainJob may set to another value.
    defaults_of_large_jobs: Sequence[Variable] = ()  # of more hosts than LARGEST_FLAT_LAUNCH
    defaults_of_pod_networks: Sequence[Variable] = ()  # unless the pods use the host's network
    # Whether the launcher recognizes itself only by its host name without the subdomain.
    has_short_launcher: bool = False


IMPLEMENTATIONS = {
    "OpenMPI": Implementation(
        " slots=",
        variables=(  # of Open MPI 4
            ("OMPI_MCA_orte_default_hostfile", HOSTFILE_PATH),
            ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
            ("OMPI_MCA_orte_set_default_slots", SLOTS),
            ("OMPI_MCA_plm_rsh_args", SSH_ARGS),
        ),
        newer_variables=(  # of Open MPI 5, which ignores the others
            ("PRTE_MCA_prte_default_hostfile", HOSTFILE_PATH),
            # If true, the launcher takes its own line in the hostfile for another host.
            ("PRTE_MCA_prte_keep_fqdn_hostnames", "false"),
            ("PRTE_MCA_prte_set_default_slots", SLOTS),
            ("PRTE_MCA_plm_ssh_args", SSH_ARGS),
        ),
        defaults_of_large_jobs=(("PRTE_MCA_plm_ssh_no_tree_spawn", "true"),),
    ),
    "Intel": Implementation(
        ":",
        variables=(
            ("I_MPI_HYDRA_HOST_FILE", HOSTFILE_PATH),
            ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", SSH_ARGS),
            ("I_MPI_PERHOST", SLOTS),
        ),
        defaults_of_pod_networks=(("I_MPI_HYDRA_IFACE", POD_INTERFACE),),
        has_short_launcher=True,
    ),
    "MPICH": Implementation(
        ":",
        variables=(
            ("HYDRA_HOST_FILE", HOSTFILE_PATH),
            ("HYDRA_LAUNCH_EXTRA_ARGS", SSH_ARGS),  # of old releases
            ("HYDRA_LAUNCHER_EXTRA_ARGS", SSH_ARGS),
        ),
        defaults_of_pod_networks=(("HYDRA_IFACE", POD_INTERFACE),),
    ),
}
DEFAULT_IMPLEMENTATION = "OpenMPI"


def is_known(policy: MPIPolicy) -> bool:
    """Whether the implementation of the policy is supported; empty means OpenMPI."""
    return (policy.mpi_implementation or DEFAULT_IMPLEMENTATION) in IMPLEMENTATIONS


def implementation_of(policy: MPIPolicy) -> Implementation:
    """Return the implementation of the policy, which is known."""
    return IMPLEMENTATIONS[policy.mpi_implementation or DEFAULT_IMPLEMENTATION]


def reserved_variables(policy: MPIPolicy) -> Sequence[str]:
    """Return the names of variables that a TrainJob cannot set."""
    if not is_known(policy):
        return ()
    found = implementation_of(policy)
    return [name for name, _ in (*found.variables, *found.newer_variables)]
