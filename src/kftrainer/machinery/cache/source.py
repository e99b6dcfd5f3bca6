"""The objects that an informer reads, and the requests that read them."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from kftrainer.kube.client.client import Client, Page
from kftrainer.kube.client.watch import WatchEvent
from kftrainer.kube.objects.resource import Resource

NO_OBJECT = "metadata.name=no-such-object"


@dataclass(frozen=True, slots=True)
class Source:
    """A kind on a server, optionally limited by namespace and selectors."""

    client: Client
    resource: Resource[Any]
    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None

    @property
    def context(self) -> dict[str, str]:
        """Key-value pairs for logs."""
        kind = {"kind": self.resource.group_kind}
        return {**kind, "namespace": self.namespace} if self.namespace else kind

    def watch(
        self, resource_version: str, *, with_initial: bool, seconds: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch from this version on, optionally with all existing objects sent first."""
        return self.client.watch(
            self.resource,
            namespace=self.namespace,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
            resource_version=resource_version,
            send_initial_events=with_initial,
            timeout_seconds=seconds,
        )

    def pages(self, resource_version: str, limit: int) -> AsyncIterator[Page]:
        """List all objects in pages."""
        return self.client.list_pages(
            self.resource,
            namespace=self.namespace,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
            resource_version=resource_version,
            limit=limit,
        )

    async def version(self) -> str:
        """Return the server's current resourceVersion, read with a list that matches no object.

        With a field selector that selector is used instead, because access may be limited to the
        objects that it selects.
        """
        page = await self.client.list(
            self.resource,
            namespace=self.namespace,
            field_selector=self.field_selector or NO_OBJECT,
        )
        return page.resource_version
