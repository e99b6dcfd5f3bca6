"""Whether we may read a kind: found out by trying."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from kftrainer.kube.client import Client
from kftrainer.kube.errors import ForbiddenError, NotFoundError
from kftrainer.kube.resource import Resource


async def refusal_to_list(
    client: Client, resource: Resource[Any], namespaces: Sequence[str]
) -> ForbiddenError | None:
    """Why we may not list the kind in one of these namespaces, or anywhere if none is named."""
    everywhere = not namespaces or not resource.namespaced
    for namespace in (None,) if everywhere else namespaces:
        try:
            async with aclosing(client.list_pages(resource, namespace=namespace, limit=1)) as pages:
                async for _ in pages:
                    break
        except ForbiddenError as error:
            return error
        except NotFoundError:  # it was deinstalled in this moment
            return None
    return None
