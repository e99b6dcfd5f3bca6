"""Computes the number of pods of jobs before the ML policy is enforced."""

from kftrainer.api import names
from kftrainer.api.trainingruntime import MPIPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import Info
from kftrainer.runtime.podset import PodSet


def count_of(pod_set: PodSet, info: Info, job: TrainJob) -> int:
    """Return the number of pods that each replica of the job will have."""
    if isinstance(info.policy, MPIPolicy):
        return _mpi_count(pod_set, info, job, info.policy)
    nodes = info.num_nodes(job)
    return nodes if nodes is not None and pod_set is info.trainer else pod_set.count


def _mpi_count(pod_set: PodSet, info: Info, job: TrainJob, policy: MPIPolicy) -> int:
    """Return the number of pods of a job with MPI; that of the launcher does not change.

    If neither the TrainJob nor the runtime sets the number of nodes, the template's number is used
    if it is not 1.
    """
    nodes = info.num_nodes(job)
    if pod_set.name != names.JOB_NODE or not (nodes or pod_set.count == 1):
        return pod_set.count
    launches = policy.run_launcher_as_node and info.pod_set(names.JOB_LAUNCHER) is not None
    return (nodes or 1) - launches
