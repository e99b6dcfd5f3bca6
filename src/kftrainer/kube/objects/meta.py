"""Types that Kubernetes objects share: metadata and status conditions."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field

from kftrainer.kube.objects.model import KubeModel, OpaqueList


class OwnerReference(KubeModel):
    """A reference to the owner of an object."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(KubeModel):
    """Object metadata; times stay strings as received."""

    name: str = ""
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None
    managed_fields: OpaqueList | None = None


def rfc3339(moment: datetime) -> str:
    """Return the time as Kubernetes writes it: UTC, in seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
CONDITION_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class Condition(KubeModel):
    """One aspect of an object's state, as the Kubernetes API conventions define it."""

    type: Annotated[
        str, Field(max_length=316, pattern=CONDITION_TYPE, description="Type of the condition.")
    ]
    status: Annotated[
        Literal["True", "False", "Unknown"], Field(description="Status of the condition.")
    ]
    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=1024,
            pattern=CONDITION_REASON,
            description="Reason for the status, as one word for programs.",
        ),
    ]
    message: Annotated[
        str, Field(max_length=32768, description="Reason for the status, as text for people.")
    ]
    last_transition_time: Annotated[
        str,
        Field(
            description="Time of the last change of the status.",
            json_schema_extra={"format": "date-time"},
        ),
    ]
    observed_generation: Annotated[
        int | None,
        Field(
            ge=0,
            description="Generation of the object for which the condition was set.",
            json_schema_extra={"format": "int64"},
        ),
    ] = None


def new_condition(
    kind: str, reason: str, message: str, now: datetime, status: str = "True"
) -> Condition:
    """Return a condition of this type whose status changed now."""
    return Condition.parse(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(now),
        }
    )
