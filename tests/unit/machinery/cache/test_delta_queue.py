"""The inbox: order is kept, and when much waits only the last of each object."""

import asyncio
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.objects.resource import Manifest, Resource, unstructured
from kftrainer.machinery.cache.cached_object import CachedObjectFactory
from kftrainer.machinery.cache.delta_queue import (
    LIMIT,
    Bookmarked,
    Delta,
    DeltaQueue,
    FilteredOut,
    Removed,
    Updated,
    only_the_last,
)

THINGS: Resource[Manifest] = Resource(
    "", "v1", "Thing", "things", namespaced=True, decode=unstructured
)
FACTORY = CachedObjectFactory(THINGS, None, {})


def delta(name: str, version: int, *, is_deleted: bool = False) -> Delta[Manifest]:
    entry = FACTORY.create({"metadata": {"name": name, "resourceVersion": str(version)}})
    return Removed(entry) if is_deleted else Updated(entry)


async def drained(queue: DeltaQueue[Manifest]) -> list[Delta[Manifest]]:
    everything = []
    while len(queue):
        everything.append(await queue.next())
        queue.done()
    return everything


async def test_deltas_are_fifo() -> None:
    queue: DeltaQueue[Manifest] = DeltaQueue()
    put = [delta("a", 1), delta("b", 2), delta("a", 3), Bookmarked("4")]
    for each in put:
        queue.put(each)
    assert await drained(queue) == put


async def test_storm_of_events_on_one_object_is_bounded_and_ends_with_the_last_event() -> None:
    queue: DeltaQueue[Manifest] = DeltaQueue()
    queue.put(delta("b", 0))
    most = 0
    for version in range(10 * LIMIT):
        queue.put(delta("a", version, is_deleted=version % 7 == 0))
        most = max(most, len(queue))
    last = delta("a", 10 * LIMIT, is_deleted=True)
    queue.put(last)
    assert most <= LIMIT
    everything = await drained(queue)
    assert everything[-1] is last
    assert sum(isinstance(each, Updated) and each.entry.key.name == "b" for each in everything) == 1


async def test_many_different_objects_all_stay() -> None:
    queue: DeltaQueue[Manifest] = DeltaQueue()
    put = [delta(f"a-{n}", n) for n in range(3 * LIMIT)]
    for each in put:
        queue.put(each)
    assert await drained(queue) == put


async def test_queue_is_empty_after_the_last_delta_is_processed() -> None:
    queue: DeltaQueue[Manifest] = DeltaQueue()
    await queue.emptied()
    queue.put(delta("a", 1))
    await queue.next()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.emptied())
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.done()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
def test_remaining_deltas_are_the_last_of_each_object_in_order(
    happened: list[tuple[str, bool]],
) -> None:
    waiting = deque(
        delta(name, n, is_deleted=is_deleted) for n, (name, is_deleted) in enumerate(happened)
    )
    last = {each.entry.key.name: each for each in waiting if isinstance(each, Updated | Removed)}
    left = list(only_the_last(waiting))
    assert left == [each for each in waiting if each in last.values()]


def test_object_that_no_longer_matches_is_an_event_like_any_other() -> None:
    entry = FACTORY.create({"metadata": {"name": "a", "resourceVersion": "1"}})
    unwanted, again = FilteredOut(entry.key, "2"), delta("a", 3)
    assert list(only_the_last(deque([Updated(entry), unwanted]))) == [unwanted]
    assert list(only_the_last(deque([Updated(entry), unwanted, again]))) == [again]
