"""Maps webhook paths to validators."""

from collections.abc import Collection

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.kube.client.client import Client
from kftrainer.machinery.webhook.admission import Validator
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.webhooks.live_reads import ReducedObjects, nothing_reduced
from kftrainer.webhooks.registration import webhook_path
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission


def validators_by_path(
    runtimes: Runtimes,
    existing: ClusterReader,
    client: Client | None,
    *,
    namespaces: Collection[str] = (),
    reduced: ReducedObjects = nothing_reduced,
) -> dict[str, Validator]:
    """Return all validators by path.

    `reduced` returns the large objects of a TrainJob of which `existing` holds only a part.
    """
    framework = runtimes.framework
    return {
        webhook_path(TRAIN_JOBS): TrainJobAdmission(
            runtimes, existing, client, namespaces=namespaces, reduced=reduced
        ),
        webhook_path(TRAINING_RUNTIMES): RuntimeAdmission(TRAINING_RUNTIMES, framework),
        webhook_path(CLUSTER_TRAINING_RUNTIMES): RuntimeAdmission(
            CLUSTER_TRAINING_RUNTIMES, framework
        ),
    }
