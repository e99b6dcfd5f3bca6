"""Types of `spec.runtimePatches`: changes to the runtime, one entry for each manager."""

from typing import Annotated

from pydantic import Field

from kftrainer.api.overrides import CONTAINER, POD, ContainerOverride, PodFields
from kftrainer.api.schema.markers import Embedded, SchemaOf, list_map
from kftrainer.api.template_metadata import TemplateMetadata
from kftrainer.kube.objects.model import KubeModel, Opaque, OpaqueList

MOST_PATCHES = 16
MOST_JOBS = 100


class ContainerPatch(ContainerOverride):
    """Changes to a container of the template."""

    security_context: Annotated[
        Opaque | None,
        Embedded(f"{CONTAINER}.securityContext"),
        Field(description="Security context, merged field by field."),
    ] = None
    resources: Annotated[
        Opaque | None,
        Embedded(f"{CONTAINER}.resources"),
        Field(
            description="Resources, merged by their names. Claims replace those of the template."
        ),
    ] = None


class PodSpecPatch(PodFields):
    """Changes to the pods of a job."""

    init_containers: Annotated[
        list[ContainerPatch] | None,
        list_map("name"),
        Field(description="Init containers to change."),
    ] = None
    containers: Annotated[
        list[ContainerPatch] | None, list_map("name"), Field(description="Containers to change.")
    ] = None
    security_context: Annotated[
        Opaque | None,
        Embedded(f"{POD}.securityContext"),
        Field(description="Security context of the pods, merged field by field."),
    ] = None
    termination_grace_period_seconds: Annotated[
        int | None,
        Field(
            ge=0,
            description="Time in seconds between SIGTERM and SIGKILL.",
            json_schema_extra={"format": "int64"},
        ),
    ] = None
    resource_claims: Annotated[
        OpaqueList | None,
        Embedded(f"{POD}.resourceClaims[]"),
        list_map("name"),
        Field(description="Resource claims of the pods, to add or replace."),
    ] = None


class PodTemplatePatch(KubeModel):
    """Changes to the pod template of a job."""

    metadata: Annotated[
        TemplateMetadata | None, Field(description="Labels and annotations for the pods.")
    ] = None
    spec: Annotated[PodSpecPatch | None, Field(description="Changes to the pods.")] = None


class JobSpecPatch(KubeModel):
    """Changes to the spec of a job."""

    template: Annotated[
        PodTemplatePatch | None, Field(description="Changes to the pod template.")
    ] = None


class JobTemplatePatch(KubeModel):
    """Changes to a job of the JobSet."""

    metadata: Annotated[
        TemplateMetadata | None, Field(description="Labels and annotations for the Jobs.")
    ] = None
    spec: Annotated[JobSpecPatch | None, Field(description="Changes to the spec of the Jobs.")] = (
        None
    )


class ReplicatedJobPatch(KubeModel):
    """Changes to a replicated job of the runtime's template."""

    name: Annotated[str, Field(min_length=1, description="Name of the replicated job.")]
    template: Annotated[JobTemplatePatch | None, Field(description="Changes to its Jobs.")] = None


class JobSetSpecPatch(KubeModel):
    """Changes to the spec of the JobSet."""

    # Not parsed as ReplicatedJobPatch: planning merges the content as it was written.
    replicated_jobs: Annotated[
        OpaqueList | None,
        SchemaOf(ReplicatedJobPatch),
        list_map("name"),
        Field(max_length=MOST_JOBS, description="Changes to the replicated jobs."),
    ] = None


class JobSetTemplatePatch(KubeModel):
    """Changes to the JobSet."""

    metadata: Annotated[
        TemplateMetadata | None, Field(description="Labels and annotations for the JobSet.")
    ] = None
    spec: Annotated[
        JobSetSpecPatch | None, Field(description="Changes to the spec of the JobSet.")
    ] = None


class TrainingRuntimeSpecPatch(KubeModel):
    """Changes to the spec of the runtime."""

    template: Annotated[JobSetTemplatePatch | None, Field(description="Changes to the JobSet.")] = (
        None
    )


class RuntimePatch(KubeModel):
    """Changes to the runtime by one manager."""

    manager: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            description="Name of the manager of the entry, with a domain: example.com/name.",
        ),
    ]
    time: Annotated[
        str | None,
        Field(
            description="Time of the last change, set at admission. It has no effect.",
            json_schema_extra={"format": "date-time"},
        ),
    ] = None
    training_runtime_spec: Annotated[
        TrainingRuntimeSpecPatch | None, Field(description="Changes to the spec of the runtime.")
    ] = None
