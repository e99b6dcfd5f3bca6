"""TrainJobs that are expensive for their size, and an API server that stores them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kftrainer.devcluster.client import ApiClient, Object

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainjobs.trainer.kubeflow.org"
BOUNDS = ("maxItems", "maxProperties", "maxLength")
MERGE = "application/merge-patch+json"


def distinct_quantities(count: int, first: int = 1) -> Object:
    """Resources of the trainer, each of another amount and costly to write out."""
    amounts = {f"a/{number}": f"{number}e991" for number in range(first, first + count)}
    return {"resourcesPerNode": {"limits": amounts}}


def without_limits(schema: Any) -> Any:
    """The schema without limits of lists, maps and texts."""
    if isinstance(schema, dict):
        kept = {key: each for key, each in schema.items() if key not in BOUNDS}
        return {key: without_limits(each) for key, each in kept.items()}
    return [without_limits(each) for each in schema] if isinstance(schema, list) else schema


@asynccontextmanager
async def no_limits(api: ApiClient) -> AsyncIterator[None]:
    """Serve TrainJobs without the limits of the CRD for the length of the block."""
    before = (await api.get(CRD))["spec"]["versions"]
    without_bounds = {"spec": {"versions": without_limits(before)}}
    await api.request("PATCH", CRD, body=without_bounds, content_type=MERGE)
    try:
        yield
    finally:
        restored = {"spec": {"versions": before}}
        await api.request("PATCH", CRD, body=restored, content_type=MERGE)
