"""Types of the overrides of a runtime's pod templates, as in releases 2.1 and 2.0."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

from pydantic import Field

from kftrainer.api.schema.markers import Atomic, Embedded, SchemaOf, list_map
from kftrainer.api.template_metadata import TemplateMetadata
from kftrainer.kube.objects.model import KubeModel, Opaque, OpaqueList

POD = "replicatedJobs[].template.spec.template.spec"
CONTAINER = f"{POD}.containers[]"
MOST = 100  # overrides, and target jobs of each; bounds the merges, which block the event loop


class TargetJob(KubeModel):
    """A job of the runtime's template."""

    name: Annotated[str, Field(min_length=1, description="Name of the replicated job.")]


class ContainerOverride(KubeModel):
    """Changes to a container of the template."""

    name: Annotated[str, Field(min_length=1, description="Name of the container.")]
    env: Annotated[
        OpaqueList | None,
        Embedded(f"{CONTAINER}.env[]"),
        list_map("name"),
        Field(
            description="Environment variables to add or replace. Not allowed for the containers "
            "of the trainer and the initializers: set spec.trainer.env and spec.initializer "
            "instead."
        ),
    ] = None
    volume_mounts: Annotated[
        OpaqueList | None,
        Embedded(f"{CONTAINER}.volumeMounts[]"),
        list_map("mountPath"),
        Field(description="Volume mounts to add or replace."),
    ] = None


class PodFields(KubeModel):
    """Fields of the pods of the template that every kind of override can change."""

    service_account_name: Annotated[str | None, Field(description="Service account to run as.")] = (
        None
    )
    node_selector: Annotated[
        Mapping[str, str] | None, Field(description="Required node labels, merged key by key.")
    ] = None
    affinity: Annotated[
        Opaque | None, Embedded(f"{POD}.affinity"), Field(description="Scheduling affinity.")
    ] = None
    tolerations: Annotated[
        OpaqueList | None,
        Embedded(f"{POD}.tolerations[]"),
        Atomic(),
        Field(description="Tolerations; they replace those of the template."),
    ] = None
    volumes: Annotated[
        OpaqueList | None,
        Embedded(f"{POD}.volumes[]"),
        list_map("name"),
        Field(description="Volumes to add or replace."),
    ] = None
    scheduling_gates: Annotated[
        OpaqueList | None,
        Embedded(f"{POD}.schedulingGates[]"),
        list_map("name"),
        Field(description="Scheduling gates: the pods are not scheduled until they are removed."),
    ] = None
    image_pull_secrets: Annotated[
        OpaqueList | None,
        Embedded(f"{POD}.imagePullSecrets[]"),
        list_map("name"),
        Field(description="Image pull secrets, added to those of the template."),
    ] = None


class PodSpecOverride(PodFields):
    """Changes to the pods of the template."""

    init_containers: Annotated[
        list[ContainerOverride] | None,
        list_map("name"),
        Field(description="Init containers to change."),
    ] = None
    containers: Annotated[
        list[ContainerOverride] | None, list_map("name"), Field(description="Containers to change.")
    ] = None


TargetJobs = Annotated[
    list[TargetJob],
    Atomic(),
    Field(
        min_length=1,
        max_length=MOST,
        description="The jobs of the runtime's template to change.",
    ),
]


class PodTemplateOverride(KubeModel):
    """A strategic merge patch for the pod templates of some jobs (release 2.1)."""

    target_jobs: TargetJobs
    metadata: Annotated[
        TemplateMetadata | None, Field(description="Labels and annotations for the pods.")
    ] = None
    spec: Annotated[
        Opaque | None,
        SchemaOf(PodSpecOverride),
        Field(description="Changes to the pods."),
    ] = None


class LegacyPodSpecOverride(PodSpecOverride):
    """An override in the format of release 2.0: the pod's fields are next to targetJobs."""

    target_jobs: TargetJobs

    @cached_property
    def modern(self) -> PodTemplateOverride:
        """This override in the form of release 2.1, converted once."""
        spec = self.dump()
        return PodTemplateOverride.parse({"targetJobs": spec.pop("targetJobs"), "spec": spec})
