"""Ends pods on request; fake nodes run them while they are annotated."""

from collections.abc import Iterable
from typing import Literal

from kftrainer.devcluster.client import NOT_FOUND, ApiClient, Object
from kftrainer.devcluster.errors import ApiError

MERGE = "application/merge-patch+json"
EXIT_CODES = {"Succeeded": 0, "Failed": 1}


async def end_pods(
    api: ApiClient, pods: Iterable[Object], phase: Literal["Succeeded", "Failed"]
) -> None:
    """Report the end of these pods as their kubelet does; pods that were deleted are ignored."""
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        if "deletionTimestamp" in metadata or status.get("phase") in EXIT_CODES:
            continue
        terminated = {"exitCode": EXIT_CODES[phase]}
        containers = [
            {**each, "ready": False, "state": {"terminated": terminated}}
            for each in status.get("containerStatuses", ())
        ]
        body = {"status": {"phase": phase, "containerStatuses": containers}}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        try:
            await api.request("PATCH", path, body=body, content_type=MERGE)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
