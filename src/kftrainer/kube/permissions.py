"""Permission checks for a kind: by a trial request or by an access review."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ForbiddenError, KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured

OWN_ACCESS_REVIEWS: Resource[Manifest] = Resource(
    "authorization.k8s.io",
    "v1",
    "SelfSubjectAccessReview",
    "selfsubjectaccessreviews",
    namespaced=False,
    decode=unstructured,
)


async def refusals_to_list(
    client: Client, resource: Resource[Any], namespaces: Sequence[str]
) -> Mapping[str, ForbiddenError]:
    """Return the errors of listing the kind, by namespace.

    The key is the empty string if the kind is listed in all namespaces.
    """
    everywhere = not namespaces or not resource.namespaced
    refusals: dict[str, ForbiddenError] = {}
    for namespace in (None,) if everywhere else namespaces:
        try:
            async with aclosing(client.list_pages(resource, namespace=namespace, limit=1)) as pages:
                async for _ in pages:
                    break
        except ForbiddenError as error:
            refusals[namespace or ""] = error
        except NotFoundError:  # uninstalled at this moment
            return {}
    return refusals


async def refusal_to_list_any(
    client: Client, resource: Resource[Any], namespaces: Sequence[str]
) -> ForbiddenError | None:
    """Return an error if the kind can be listed in no namespace; one readable one is enough.

    None also if the check failed otherwise, which may be temporary.
    """
    try:
        refusals = await refusals_to_list(client, resource, namespaces)
    except KubeError:
        return None
    if len(refusals) < max(1, len(namespaces)):
        return None
    return next(iter(refusals.values()))


async def may_everywhere(client: Client, verb: str, resource: Resource[Any]) -> bool:
    """Return whether this process may use the verb on the kind in all namespaces.

    Sends a SelfSubjectAccessReview, which unlike a trial request is not refused. Raises KubeError.
    """
    attributes = {"verb": verb, "group": resource.group, "resource": resource.plural}
    review = await client.create(
        OWN_ACCESS_REVIEWS,
        {
            "apiVersion": OWN_ACCESS_REVIEWS.api_version,
            "kind": OWN_ACCESS_REVIEWS.kind,
            "metadata": {},
            "spec": {"resourceAttributes": attributes},
        },
    )
    return bool((review.get("status") or {}).get("allowed"))
