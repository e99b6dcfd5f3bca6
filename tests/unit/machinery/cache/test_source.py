"""Which objects an informer reads."""

from typing import Any, cast

import pytest

from kftrainer.kube.client.client import Client, Page
from kftrainer.machinery.cache.source import NO_OBJECT, Source
from tests.support.informers import CONFIG_MAPS


class Listener:
    """A client that only notes what is listed."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}

    async def list(self, _resource: Any, **requested: Any) -> Page:
        self.requests = requested
        return Page([], "17")


@pytest.mark.parametrize(
    ("selected", "requested"), [(None, NO_OBJECT), ("metadata.name=ours", "metadata.name=ours")]
)
async def test_version_request_needs_only_watch_permissions(
    selected: str | None, requested: str
) -> None:
    listener = Listener()
    source = Source(cast("Client", listener), CONFIG_MAPS, "ns", field_selector=selected)
    assert await source.version() == "17"
    assert listener.requests == {"namespace": "ns", "field_selector": requested}
