"""Requests of several clients in one queue."""

import asyncio

import pytest

from kftrainer.machinery.queue.fair_queue import FairQueue, QueueFullError


def new_queue(most: int = 100, per_client: int = 50, waiting: int = 100) -> FairQueue:
    return FairQueue(most, per_client, waiting)


async def started_in_order(queue: FairQueue, *clients: str) -> list[str]:
    """The clients in the order in which their requests start; each ends at once."""
    order: list[str] = []

    async def request(client: str) -> None:
        await queue.acquire(client)
        order.append(client)
        queue.release(client)

    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(request(client))
    return order


async def test_many_requests_of_one_client_do_not_delay_another() -> None:
    order = await started_in_order(new_queue(), *["flood"] * 20, "other", "other")
    assert order[:5] == ["flood", "flood", "other", "flood", "other"]
    assert order[5:] == ["flood"] * 17


async def test_requests_start_one_in_each_pass_of_the_event_loop() -> None:
    queue, started = new_queue(), 0

    async def request() -> None:
        nonlocal started
        await queue.acquire("a")
        started += 1

    counts = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(request())
        while started < 5:
            await asyncio.sleep(0)
            counts.append(started)
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert set(steps) <= {0, 1}


async def test_request_that_arrives_as_another_starts_waits_for_the_next_pass() -> None:
    queue, has_started = new_queue(per_client=1), asyncio.Event()

    async def request() -> None:
        await queue.acquire("a")
        has_started.set()

    async with asyncio.TaskGroup() as tasks:
        await queue.acquire("a")
        tasks.create_task(request())
        for _ in range(5):
            await asyncio.sleep(0)
        queue.release("a")
        while not has_started.is_set():  # noqa: ASYNC110  pass by pass
            await asyncio.sleep(0)
        # In the same pass, in which the queue has already been searched.
        arriving = queue.acquire("b")
        arriving.send(None)  # raises StopIteration if it starts at once
        arriving.close()


async def test_one_client_cannot_take_all_places() -> None:
    queue = new_queue(most=4, per_client=2)
    for _ in range(2):
        await queue.acquire("slow")
    async with asyncio.TaskGroup() as tasks:
        third = tasks.create_task(queue.acquire("slow"))
        await queue.acquire("other")
        assert not third.done()
        queue.release("slow")


async def test_all_clients_together_have_a_limit() -> None:
    queue = new_queue(most=2, per_client=1)
    await queue.acquire("a")
    await queue.acquire("b")
    async with asyncio.TaskGroup() as tasks:
        third = tasks.create_task(queue.acquire("c"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not third.done()
        queue.release("a")


async def test_a_full_queue_rejects_only_its_client() -> None:
    queue = new_queue(per_client=1, waiting=1)
    await queue.acquire("a")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queue.acquire("a"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await queue.acquire("a")
        await queue.acquire("b")
        queue.release("a")


async def test_cancelled_requests_leave_nothing_behind() -> None:
    queue = new_queue(most=1, per_client=1)
    await queue.acquire("a")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.acquire("b"))
        admitted = tasks.create_task(queue.acquire("c"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        queue.release("a")
        await asyncio.sleep(0)
        admitted.cancel()  # its turn has come, but it has not run since
        await asyncio.wait([admitted])
    assert admitted.cancelled()
    assert not queue._queues
    assert not queue._in_progress
    await queue.acquire("d")
