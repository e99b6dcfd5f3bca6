"""Computes the number of pods of jobs before the ML policy is enforced."""

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import Info
from kftrainer.runtime.podset import PodSet


def count_of(pod_set: PodSet, info: Info, job: TrainJob) -> int:
    """Return the number of pods that each replica of the job will have."""
    nodes = info.num_nodes(job)
    if info.layout.worker is not None:
        return _count_with_launcher(pod_set, info, nodes)
    return nodes if nodes is not None and pod_set is info.trainer else pod_set.count


def _count_with_launcher(pod_set: PodSet, info: Info, nodes: int | None) -> int:
    """Return the number of pods of a job; only that of the workers changes.

    If neither the TrainJob nor the runtime sets the number of nodes, the template's number is used
    if it is not 1.
    """
    layout = info.layout
    if pod_set.name != layout.worker or not (nodes or pod_set.count == 1):
        return pod_set.count
    has_launcher = layout.launcher is not None and info.pod_set(layout.launcher) is not None
    return layout.workers(nodes or 1, has_launcher=has_launcher)
