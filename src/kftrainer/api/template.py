"""Metadata for templates and overrides: what may be put on objects that do not exist yet."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from kftrainer.api.schema.markers import Cel
from kftrainer.kube.objects.model import KubeModel


class TemplateMetadata(KubeModel):
    """Labels and annotations for objects that are made from a template."""

    # Kubeflow Trainer takes the three others and does nothing with them.
    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            # Letting empty values pass as well would cost more than the API server allows a rule.
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
