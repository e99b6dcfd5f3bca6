"""Where the API server finds our webhooks: names and paths that clients and charts know."""

from collections.abc import Sequence
from typing import Any, Final

from kftrainer.api import names
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    AnyResource,
)

CONFIGURATION: Final = f"validator.{names.GROUP}"
KINDS: Final = (CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, TRAIN_JOBS)  # in this order
SERVICE_PORT: Final = 443
# With failurePolicy Fail and no manager running, deletion and garbage collection must still
# complete: objects that are being deleted, and bookkeeping such as finalizers, need no webhook.
NOT_BEING_DELETED: Final = "oldObject == null || !has(oldObject.metadata.deletionTimestamp)"
# What the validators look at: `is_beyond_review` for TrainJobs, `REVIEWED_LABELS` for runtimes.
CONTENT_OF_TRAIN_JOBS: Final = ("?spec", "metadata.?labels", "metadata.?annotations")
CONTENT_OF_RUNTIMES: Final = (
    "?spec",
    f"metadata.?labels[?'{names.LABEL_SUPPORT}']",
    f"metadata.?labels[?'{names.LABEL_FRAMEWORK}']",
)


def match_conditions(resource: AnyResource) -> list[dict[str, str]]:
    """Return the CEL conditions under which the API server calls the webhook of this kind."""
    content = CONTENT_OF_TRAIN_JOBS if resource is TRAIN_JOBS else CONTENT_OF_RUNTIMES
    changes = (f"object.{field} != oldObject.{field}" for field in content)
    return [
        {"name": "not-being-deleted", "expression": NOT_BEING_DELETED},
        {"name": "content-changes", "expression": " || ".join(("oldObject == null", *changes))},
    ]


def webhook_name(resource: AnyResource) -> str:
    """The name of the webhook for this kind, which denials begin with."""
    return f"validator.{resource.kind.lower()}.{resource.group}"


def webhook_path(resource: AnyResource) -> str:
    """The path that reviews of this kind are sent to."""
    group = resource.group.replace(".", "-")
    return f"/validate-{group}-{resource.version}-{resource.kind.lower()}"


def host_names(service: str, namespace: str) -> Sequence[str]:
    """The names that a certificate of this service must have; the API server asks by the first."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"


def configuration(
    service: str, namespace: str, *, port: int = SERVICE_PORT, required: bool = True
) -> dict[str, Any]:
    """The ValidatingWebhookConfiguration; the manager fills in whom to trust.

    If it is `required`, nothing is accepted while no manager answers.
    """
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [
            {
                "name": webhook_name(resource),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail" if required else "Ignore",
                "clientConfig": {
                    "service": {
                        "name": service,
                        "namespace": namespace,
                        "path": webhook_path(resource),
                        "port": port,
                    }
                },
                "rules": [
                    {
                        "apiGroups": [resource.group],
                        "apiVersions": [resource.version],
                        "resources": [resource.plural],
                        "operations": ["CREATE", "UPDATE"],
                    }
                ],
                "matchConditions": match_conditions(resource),
            }
            for resource in KINDS
        ],
    }


def beside(
    service: str, namespace: str, *, host: str, port: int, required: bool = True
) -> list[dict[str, Any]]:
    """All that registers a manager which runs outside of the cluster, in reach of its API server.

    The Service is only another name of the host, so that everything else is as in a cluster. It
    lists no port: the API server takes that of the configuration, and ports that other field
    managers have applied would make it invalid.
    """
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": service, "namespace": namespace},
            "spec": {"type": "ExternalName", "externalName": host},
        },
        configuration(service, namespace, port=port, required=required),
    ]
