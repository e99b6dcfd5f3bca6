"""Maps webhook paths to validators and defaulters."""

from collections.abc import Collection

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.kube.client.client import Client
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.webhook.admission import Defaulter, Validator
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.webhooks.live_reads import ReducedObjects, nothing_reduced
from kftrainer.webhooks.registration import defaulter_path, webhook_path
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission
from kftrainer.webhooks.trainjob_defaulter import TrainJobDefaulter


def validators_by_path(
    runtimes: Runtimes,
    existing: ClusterReader,
    client: Client | None,
    *,
    clock: Clock,
    namespaces: Collection[str] = (),
    reduced: ReducedObjects = nothing_reduced,
) -> dict[str, Validator | Defaulter]:
    """Return all validators and defaulters by path.

    `reduced` returns the large objects of a TrainJob of which `existing` holds only a part.
    """
    framework = runtimes.framework
    return {
        defaulter_path(TRAIN_JOBS): TrainJobDefaulter(clock=clock, namespaces=namespaces),
        webhook_path(TRAIN_JOBS): TrainJobAdmission(
            runtimes, existing, client, namespaces=namespaces, reduced=reduced
        ),
        webhook_path(TRAINING_RUNTIMES): RuntimeAdmission(TRAINING_RUNTIMES, framework),
        webhook_path(CLUSTER_TRAINING_RUNTIMES): RuntimeAdmission(
            CLUSTER_TRAINING_RUNTIMES, framework
        ),
    }
