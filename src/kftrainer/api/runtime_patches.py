"""Types of `spec.runtimePatches` (Kubeflow Trainer 2.2), whose content is not supported.

Kueue 0.17 and later adds an entry without content to every TrainJob and fails if that entry is
not stored. Entries without content are therefore accepted; entries with content are rejected.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from kftrainer.api.schema.markers import AnyFields, Atomic, NotServed
from kftrainer.kube.objects.model import KubeModel, OpaqueList

MOST_PATCHES = 16
_NAME, _RELEASE = "runtimePatches", "2.2"
_PODS = NotServed(
    _NAME,
    _RELEASE,
    "use spec.podTemplateOverrides, and for queueing Kueue 0.15 or 0.16, which writes them",
    is_in_job_set=True,
)
_METADATA = NotServed(_NAME, _RELEASE, "use spec.labels and spec.annotations", is_in_job_set=True)


class PatchMetadata(KubeModel):
    """Metadata of the JobSet, declared in full so that the API server can compare it."""

    labels: Annotated[Mapping[str, str] | None, Field(description="Labels.")] = None
    annotations: Annotated[Mapping[str, str] | None, Field(description="Annotations.")] = None
    name: Annotated[str | None, Field(description="Name.")] = None
    namespace: Annotated[str | None, Field(description="Namespace.")] = None
    finalizers: Annotated[list[str] | None, Field(description="Finalizers.")] = None


class JobSetSpecPatch(KubeModel):
    """Changes to the JobSet's spec."""

    replicated_jobs: Annotated[
        OpaqueList | None,
        AnyFields(),
        Atomic(),
        _PODS,
        Field(max_length=100, description="Not supported: use podTemplateOverrides."),
    ] = None


class JobSetTemplatePatch(KubeModel):
    """Changes to the JobSet."""

    metadata: Annotated[
        PatchMetadata | None,
        _METADATA,
        Field(description="Not supported: use labels and annotations of the TrainJob's spec."),
    ] = None
    spec: Annotated[JobSetSpecPatch | None, Field(description="Changes to the JobSet's spec.")] = (
        None
    )


class TrainingRuntimeSpecPatch(KubeModel):
    """Changes to the runtime's spec."""

    template: Annotated[JobSetTemplatePatch | None, Field(description="Changes to the JobSet.")] = (
        None
    )


class RuntimePatch(KubeModel):
    """Changes to the runtime by one field manager."""

    manager: Annotated[
        str, Field(min_length=1, max_length=253, description="Name of the manager of the entry.")
    ]
    time: Annotated[
        str | None,
        Field(
            description="Time of the last change, informational.",
            json_schema_extra={"format": "date-time"},
        ),
    ] = None
    training_runtime_spec: Annotated[
        TrainingRuntimeSpecPatch | None, Field(description="Changes to the runtime's spec.")
    ] = None
