"""Names, paths and configuration of our admission webhooks."""

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
MUTATING_CONFIGURATION: Final = f"defaulter.{names.GROUP}"
KINDS: Final = (CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, TRAIN_JOBS)  # in this order
DEFAULTED_KINDS: Final = (TRAIN_JOBS,)
SERVICE_PORT: Final = 443
# With failurePolicy Fail and no manager running, deletion and garbage collection must still
# complete: objects that are being deleted, and changes such as finalizers, need no webhook.
NOT_BEING_DELETED: Final = "oldObject == null || !has(oldObject.metadata.deletionTimestamp)"
# What the validators read: see `needs_no_validation` for TrainJobs, `REVIEWED_LABELS` for runtimes.
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


def mutating_match_conditions() -> list[dict[str, str]]:
    """Return the CEL conditions under which the API server calls the mutating webhook."""
    changes = "oldObject == null || object.?spec != oldObject.?spec"
    return [
        {"name": "not-being-deleted", "expression": NOT_BEING_DELETED},
        {"name": "spec-changes", "expression": changes},
    ]


def webhook_name(resource: AnyResource) -> str:
    """Return the name of the validating webhook for this kind; denial messages begin with it."""
    return f"validator.{resource.kind.lower()}.{resource.group}"


def webhook_path(resource: AnyResource) -> str:
    """Return the path of the validating webhook for this kind."""
    return _path("validate", resource)


def defaulter_name(resource: AnyResource) -> str:
    """Return the name of the mutating webhook for this kind."""
    return f"defaulter.{resource.kind.lower()}.{resource.group}"


def defaulter_path(resource: AnyResource) -> str:
    """Return the path of the mutating webhook for this kind."""
    return _path("mutate", resource)


def _path(verb: str, resource: AnyResource) -> str:
    group = resource.group.replace(".", "-")
    return f"/{verb}-{group}-{resource.version}-{resource.kind.lower()}"


def host_names(service: str, namespace: str) -> Sequence[str]:
    """Return the names that the serving certificate needs; the API server uses the first."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"


def configuration(
    service: str, namespace: str, *, port: int = SERVICE_PORT, required: bool = True
) -> dict[str, Any]:
    """Return the ValidatingWebhookConfiguration; the manager adds the CA bundle.

    If `required`, requests are rejected while no manager is available.
    """
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [
            {
                "name": webhook_name(resource),
                "failurePolicy": "Fail" if required else "Ignore",
                "clientConfig": _service(service, namespace, webhook_path(resource), port),
                "matchConditions": match_conditions(resource),
                **_common(resource),
            }
            for resource in KINDS
        ],
    }


def mutating_configuration(
    service: str, namespace: str, *, port: int = SERVICE_PORT
) -> dict[str, Any]:
    """Return the MutatingWebhookConfiguration; the manager adds the CA bundle.

    A TrainJob in another form is also valid, so a failure of this webhook rejects no request. It is
    called again if another webhook changes the TrainJob, as Kueue's does.
    """
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": MUTATING_CONFIGURATION},
        "webhooks": [
            {
                "name": defaulter_name(resource),
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "IfNeeded",
                "clientConfig": _service(service, namespace, defaulter_path(resource), port),
                "matchConditions": mutating_match_conditions(),
                **_common(resource),
            }
            for resource in DEFAULTED_KINDS
        ],
    }


def _service(name: str, namespace: str, path: str, port: int) -> dict[str, Any]:
    return {"service": {"name": name, "namespace": namespace, "path": path, "port": port}}


def _common(resource: AnyResource) -> dict[str, Any]:
    """Return the fields that the webhooks of a kind have in common."""
    return {
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": [
            {
                "apiGroups": [resource.group],
                "apiVersions": [resource.version],
                "resources": [resource.plural],
                "operations": ["CREATE", "UPDATE"],
            }
        ],
    }


def external_objects(
    service: str, namespace: str, *, host: str, port: int, required: bool = True
) -> list[dict[str, Any]]:
    """Return all objects that register a manager running outside the cluster.

    The API server must be able to reach `host`. The Service is an alias of the host, so everything
    else is the same as in a cluster. It lists no port: the API server uses the one in the
    configuration, and ports applied by other field managers would make the Service invalid.
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
        mutating_configuration(service, namespace, port=port),
    ]
