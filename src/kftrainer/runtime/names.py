"""Whether the names that JobSet will make from a TrainJob's are short enough."""

from collections.abc import Iterator

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.field import FieldError, invalid
from kftrainer.runtime.info import Info
from kftrainer.runtime.podset import PodSet

LONGEST_LABEL = 63  # of host names, which names of pods become
POD_SUFFIX = "-abcde"  # what the Job controller adds


def name_errors(info: Info, job: TrainJob) -> Iterator[FieldError]:
    """The first replicated job for which the TrainJob's name is too long."""
    room, tightest = min((_room(each), each.name) for each in info.pod_sets)
    if len(job.metadata.name) > room:
        detail = (
            f"must be no more than {room} characters: the pods of the job {tightest} are named "
            f"after it, and names of pods must be no more than {LONGEST_LABEL} characters"
        )
        yield invalid("metadata.name", job.metadata.name, detail)


def _room(pod_set: PodSet) -> int:
    """How long a TrainJob's name can be, for the longest name among these pods to fit."""
    last_replica, last_pod = max(pod_set.replicas - 1, 0), max(pod_set.count - 1, 0)
    rest = f"-{pod_set.name}-{last_replica}-{last_pod}{POD_SUFFIX}"
    return LONGEST_LABEL - len(rest)
