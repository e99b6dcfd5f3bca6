"""The discovered version of a kind does not depend on earlier lookups."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager

import orjson
import pytest

from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.transport import NOTHING, Lane, Response
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured

GROUP = "furniture.example"


class Served:
    """A transport to a server with one group; its versions, the preferred one first."""

    def __init__(self, **kinds: tuple[str, ...]) -> None:
        self.kinds = kinds
        self.requests: list[str] = []

    async def request(  # noqa: PLR0913
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = 60.0,  # noqa: ASYNC109
        lane: Lane = "general",
    ) -> Response:
        self.requests.append(path)
        if path == f"/apis/{GROUP}":
            versions = [{"version": version} for version in self.kinds]
            answer = {"preferredVersion": versions[0], "versions": versions}
        else:
            kinds = self.kinds[path.removeprefix(f"/apis/{GROUP}/")]
            named = [{"kind": kind, "name": f"{kind.lower()}s"} for kind in kinds]
            answer = {"resources": [{**each, "namespaced": True} for each in named]}
        return Response(200, {}, orjson.dumps(answer))

    def stream(
        self, path: str, *, query: Mapping[str, str], timeout: float, lane: Lane = "watch"
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError("unexpected watch")

    async def close(self) -> None:
        pass


def chairs(version: str) -> Resource[Manifest]:
    return Resource(GROUP, version, "Chair", "chairs", namespaced=True, decode=unstructured)


@pytest.mark.parametrize("before", ["v1", "v1beta1", "v1alpha1"])
async def test_preferred_version_is_independent_of_earlier_lookups(before: str) -> None:
    mapper = RestMapper(Served(v1=("Table",), v1beta1=("Chair",), v1alpha1=("Chair",)))
    await mapper.is_served(chairs(before))
    assert await mapper.find(GROUP, "Chair") == chairs("v1beta1")


async def test_version_selected_for_another_kind_is_not_reused() -> None:
    served = Served(v1=("Table",), v1alpha1=("Chair", "Table"))
    mapper = RestMapper(served)
    assert await mapper.find(GROUP, "Table") is not None
    assert await mapper.is_served(chairs("v1alpha1"))
    served.kinds["v1"] = ("Chair", "Table")
    assert await mapper.find(GROUP, "Chair") == chairs("v1")


async def test_discovered_group_is_cached() -> None:
    served = Served(v1=("Table",), v1alpha1=("Chair",))
    mapper = RestMapper(served)
    assert await mapper.find(GROUP, "Chair") == chairs("v1alpha1")
    served.requests.clear()
    assert await mapper.find(GROUP, "Chair") == chairs("v1alpha1")
    assert served.requests == []


class InvalidJson(Served):
    """A transport to something that is no API server."""

    async def request(self, method: str, path: str, **_: object) -> Response:
        return Response(200, {}, b"<html>")


async def test_response_that_is_not_valid_json_is_a_transport_error() -> None:
    with pytest.raises(
        TransportError, match=f"GET /apis/{GROUP}/v1: the response is not valid JSON"
    ):
        await RestMapper(InvalidJson()).is_served(chairs("v1"))
