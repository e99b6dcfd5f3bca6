"""Type of the labels and annotations in templates and overrides."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from kftrainer.api.schema.markers import Cel
from kftrainer.kube.objects.model import KubeModel


class TemplateMetadata(KubeModel):
    """Labels and annotations for objects that are created from a template."""

    # Kubeflow Trainer accepts the three other fields and ignores them.
    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            # A rule that also permits empty values would exceed the API server's cost limit.
            "!has(self.name) && !has(self.namespace) && !has(self.finalizers)",
            "only labels and annotations have an effect here",
        ),
    )

    labels: Annotated[Mapping[str, str] | None, Field(description="Labels to set.")] = None
    annotations: Annotated[Mapping[str, str] | None, Field(description="Annotations to set.")] = (
        None
    )
    name: Annotated[str | None, Field(description="Must not be set.")] = None
    namespace: Annotated[str | None, Field(description="Must not be set.")] = None
    finalizers: Annotated[list[str] | None, Field(description="Must not be set.")] = None
