"""How many pods jobs have once the policy is enforced, for those who ask before it is."""

from kftrainer.api import names
from kftrainer.api.trainingruntime import MPIPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import Info
from kftrainer.runtime.podset import PodSet


def count_of(pod_set: PodSet, info: Info, job: TrainJob) -> int:
    """How many pods each replica of the job will have."""
    if isinstance(info.policy, MPIPolicy):
        return _mpi_count(pod_set, info, job, info.policy)
    nodes = info.num_nodes(job)
    return nodes if nodes is not None and pod_set is info.trainer else pod_set.count


def _mpi_count(pod_set: PodSet, info: Info, job: TrainJob, policy: MPIPolicy) -> int:
    """Leave the launcher alone: it is one node, if it is any.

    Where nobody says how many nodes there are, the template does, if it has more than one.
    """
    nodes = info.num_nodes(job)
    if pod_set.name != names.JOB_NODE or not (nodes or pod_set.count == 1):
        return pod_set.count
    launches = policy.run_launcher_as_node and info.pod_set(names.JOB_LAUNCHER) is not None
    return (nodes or 1) - launches
