"""Parts of runtimes that other releases of Kubeflow Trainer serve and this one does not.

All their fields are declared, except those of list items: the API server compares an object with
its old value by declared fields only, and ratchets rules where the two are equal.
"""

from typing import Annotated

from pydantic import Field

from kftrainer.api.schema.markers import AnyFields, Atomic, Int32
from kftrainer.kube.objects.model import KubeModel, OpaqueList


class ElasticPolicy(KubeModel):
    """Elastic training with PyTorch."""

    max_restarts: Annotated[Int32 | None, Field(description="Maximum number of restarts.")] = None
    min_nodes: Annotated[Int32 | None, Field(description="Minimum number of nodes.")] = None
    max_nodes: Annotated[Int32 | None, Field(description="Maximum number of nodes.")] = None
    metrics: Annotated[
        OpaqueList | None, AnyFields(), Atomic(), Field(description="Metrics to scale by.")
    ] = None


class JaxPolicy(KubeModel):
    """Training with JAX."""


class XGBoostPolicy(KubeModel):
    """Training with XGBoost."""


class FluxPolicy(KubeModel):
    """Training with Flux."""

    num_proc_per_node: Annotated[
        Int32 | None, Field(description="Number of processes on each node.")
    ] = None
