"""Probes answer as controller-runtime's do."""

import asyncio

import pytest

from kftrainer.machinery import health
from kftrainer.machinery.health import Probe, ReadinessMetrics, probes
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.server import BindError, HttpRequest, HttpResponse, parse_bind
from tests.support.fake_clock import FakeClock


async def well() -> str | None:
    return None


async def failing_check() -> str | None:
    return "the cache is empty"


async def get(path: str, *query: tuple[str, str], **checks: health.Check) -> HttpResponse:
    handler = probes({"healthz": Probe(checks)})
    return await handler(HttpRequest("GET", path, query, {}))


async def test_all_checks_pass() -> None:
    assert await get("/healthz", b=well, a=well) == HttpResponse(200, "ok")


async def test_verbose_names_each_check_in_order() -> None:
    answer = await get("/healthz", ("verbose", ""), b=well, a=well)
    assert answer == HttpResponse(200, "[+]a ok\n[+]b ok\nhealthz check passed\n")


async def test_a_failing_check_fails_all_and_keeps_its_reason_to_itself() -> None:
    answer = await get("/healthz", a=well, b=failing_check)
    text = "[+]a ok\n[-]b failed: reason withheld\nhealthz check failed\n"
    assert answer == HttpResponse(500, text)


async def test_excluded_checks_do_not_count() -> None:
    query = (("exclude", "b"), ("exclude", "x"), ("verbose", "1"))
    answer = await get("/healthz", *query, a=well, b=failing_check)
    assert answer == HttpResponse(
        200,
        "[+]a ok\n[+]b excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "x"\n'
        "healthz check passed\n",
    )


async def test_single_check_returns_its_reason() -> None:
    assert await get("/healthz/a", a=well) == HttpResponse(200, "ok")
    answer = await get("/healthz/b", b=failing_check)
    assert answer == HttpResponse(500, "internal server error: the cache is empty\n")


@pytest.mark.parametrize("path", ["/healthz/other", "/readyz", "/", "/healthz/a/b"])
async def test_missing_object_is_not_found(path: str) -> None:
    assert (await get(path, a=well)).status == 404


async def test_without_checks_there_is_a_ping() -> None:
    answer = await get("/healthz", ("verbose", ""))
    assert answer == HttpResponse(200, "[+]ping ok\nhealthz check passed\n")


async def test_checks_run_at_the_same_time() -> None:
    barrier = asyncio.Barrier(2)

    async def waits_for_other() -> str | None:
        await barrier.wait()
        return None

    assert (await get("/healthz", a=waits_for_other, b=waits_for_other)).status == 200


async def test_hanging_check_fails() -> None:
    async def hangs() -> str | None:
        await asyncio.Event().wait()
        return None

    answer = await get("/healthz/slow", slow=hangs)
    assert answer == HttpResponse(500, "internal server error: it did not finish within 1 s\n")


@pytest.mark.parametrize(
    ("address", "bind"),
    [
        ("127.0.0.1:8081", ("127.0.0.1", 8081)),
        (":8081", (None, 8081)),
        ("[::1]:8081", ("::1", 8081)),
        ("0", None),
        ("", None),
    ],
)
def test_addresses(address: str, bind: tuple[str | None, int] | None) -> None:
    assert parse_bind(address) == bind


def test_address_without_a_port_is_rejected_with_a_message() -> None:
    with pytest.raises(BindError, match=r"^localhost is not a valid address"):
        parse_bind("localhost")


async def test_a_check_that_raises_has_failed_and_is_named() -> None:
    async def broken() -> str | None:
        raise RuntimeError("oops")

    async def fine() -> str | None:
        return None

    answer = await Probe({"broken": broken, "fine": fine}).all([("verbose", "")])
    assert answer.status == 500
    assert "[-]broken failed" in answer.body
    assert "[+]fine ok" in answer.body


async def test_metrics_contain_the_state_and_changes_of_each_readiness_check() -> None:
    problems: dict[str, str | None] = {"caches": "not read yet", "webhooks": None}

    async def caches() -> str | None:
        return problems["caches"]

    async def webhooks() -> str | None:
        return problems["webhooks"]

    clock, metrics, stop = FakeClock(), Metrics(), asyncio.Event()

    def stalls() -> list[float | None]:
        name = "machinery_readiness_check"
        return [metrics.registry.get_sample_value(name, {"name": each}) for each in problems]

    readiness = Probe({"caches": caches, "webhooks": webhooks})
    async with asyncio.TaskGroup() as group:
        service = ReadinessMetrics(readiness, metrics, clock=clock)
        group.create_task(service.run(lambda: None, stop))
        await clock.advance(0)
        assert stalls() == [0, 1], "from the start"
        problems.update(caches=None, webhooks="there is no certificate yet")
        await clock.advance(1)
        assert stalls() == [1, 0]
        stop.set()
