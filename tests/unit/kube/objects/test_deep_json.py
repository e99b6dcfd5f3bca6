"""Lists and watches of objects that are nested more deeply than JSON decoders accept."""

from typing import Any

import orjson
import pytest

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.transport import Response
from kftrainer.kube.client.watch import Upserted, decode_events
from kftrainer.kube.objects.deep_json import DEEPEST, decode_json
from kftrainer.kube.objects.resource import Resource, unstructured

THINGS = Resource("", "v1", "Thing", "things", namespaced=True, decode=unstructured)
LEVELS = 9_000  # the API server accepts 10,000
METADATA = b'"metadata":{"name":"a","resourceVersion":"7"}'
DEEP_OBJECT = b'{"data":%b,%b}' % (b'{"a":[' * LEVELS + b'"]}"' + b"]}" * LEVELS, METADATA)
OBJECT = b'{"data":"\\"[{\\\\",%b}' % METADATA


class OnePage:
    async def request(self, *_: object, **__: object) -> Response:
        items = b",".join((OBJECT, DEEP_OBJECT, OBJECT))
        return Response(200, {}, b'{"metadata":{"resourceVersion":"9"},"items":[%b]}' % items)

    def stream(self, path: str, **_: object) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


def depth_of(value: Any) -> int:
    depth = 0
    while isinstance(value, dict | list):
        value = next(iter(value.values() if isinstance(value, dict) else value), None)
        depth += 1
    return depth


async def test_page_with_an_object_nested_too_deeply_is_read() -> None:
    page = await Client(OnePage()).list(THINGS)
    first, deep, last = page.items
    whole = orjson.loads(OBJECT)
    assert first == last == {**whole, "apiVersion": "v1", "kind": "Thing"}
    assert deep["metadata"] == whole["metadata"]
    with pytest.raises(TypeError):
        orjson.dumps(deep)


def test_watch_event_with_an_object_nested_too_deeply_is_read() -> None:
    [event] = decode_events([b'{"type":"ADDED","object":%b}' % DEEP_OBJECT])
    assert isinstance(event, Upserted)
    assert event.manifest["metadata"]["name"] == "a"


def test_only_values_below_the_deepest_level_are_replaced() -> None:
    assert depth_of(decode_json(b"[" * LEVELS + b"]" * LEVELS)) == DEEPEST
    # The innermost list of `kept` is on the deepest level, because `kept` is itself in a list.
    kept = b"[" * (DEEPEST - 2) + b"[1,[[2],3],4]" + b",5]" * (DEEPEST - 2)
    [found, last] = decode_json(b"[%b,%b]" % (kept, b"[" * LEVELS + b"]" * LEVELS))
    for _ in range(DEEPEST - 2):
        found, five = found
        assert five == 5
    assert found == [1, None, 4]
    assert depth_of(last) == DEEPEST - 1


@pytest.mark.parametrize("text", [b"", b"{", b"]", b"[" * LEVELS, b'["', b"[" * LEVELS + b'"'])
def test_invalid_json_is_an_error(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        decode_json(text)
