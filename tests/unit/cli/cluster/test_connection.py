"""How long commands on a cluster wait, and their message after a timeout."""

import asyncio
from collections.abc import Callable

import pytest

from kftrainer.cli.cluster.connection import (
    CommandError,
    DeadlineExceededError,
    Waiter,
    run_on_cluster,
)
from kftrainer.kube.client.errors import (
    ForbiddenError,
    KubeError,
    TransportError,
    UnauthorizedError,
)
from kftrainer.machinery.manager.clock import SystemClock
from tests.support.fake_clock import FakeClock, at_rest


class ScriptedCheck:
    """Answers one after the other; the last one stays."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self._answers = [*answers]
        self.times = 0

    async def __call__(self) -> str | None:
        self.times += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def wait_until_ready(
    clock: FakeClock, waiter: Waiter, check: ScriptedCheck, report: Callable[[str], None]
) -> float:
    """The time at which the waiting ended well."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(waiter.until_passed(check, report))
        await at_rest()
        while not waiting.done():
            await clock.advance(0.25)
    return clock.monotonic()


async def test_immediate_success_is_checked_once() -> None:
    clock, check = FakeClock(), ScriptedCheck(None)
    await Waiter(clock, 0.0).until_passed(check)
    assert (check.times, clock.monotonic()) == (1, 0.0)


async def test_polling_backs_off_and_reports_what_it_waits_for() -> None:
    clock, messages = FakeClock(), list[str]()
    check = ScriptedCheck("a", "b", TransportError("no answer"), "c", "c", None)
    assert await wait_until_ready(clock, Waiter(clock, 60.0), check, messages.append) == 5.75
    assert messages == ["a", "b", "b; the last attempt failed: no answer", "c", "c"]


async def test_last_poll_is_at_the_deadline() -> None:
    clock, check = FakeClock(), ScriptedCheck("torch is not there")
    with pytest.raises(ExceptionGroup) as raised:
        await wait_until_ready(clock, Waiter(clock, 3.0), check, lambda _: None)
    [error] = raised.value.exceptions
    assert isinstance(error, DeadlineExceededError)
    assert str(error) == "after 3 s: torch is not there"
    assert (clock.monotonic(), check.times) == (3.0, 5)


async def test_failed_poll_does_not_hide_earlier_findings() -> None:
    clock, check = FakeClock(), ScriptedCheck("torch is not there", TransportError("no answer"))
    with pytest.raises(ExceptionGroup) as raised:
        await wait_until_ready(clock, Waiter(clock, 3.0), check, lambda _: None)
    [error] = raised.value.exceptions
    assert str(error) == "after 3 s: torch is not there; the last attempt failed: no answer"


async def test_hanging_poll_reports_what_it_waits_for() -> None:
    waiter = Waiter(SystemClock(), 0.0)

    async def hang() -> str | None:
        waiter.awaiting("torch is not there")
        await asyncio.Event().wait()
        return None

    with pytest.raises(DeadlineExceededError) as raised:
        await waiter.until_passed(hang)
    assert str(raised.value) == "after 0 s: torch is not there; the API server does not respond"


async def test_permanent_error_is_not_waited_for() -> None:
    check = ScriptedCheck(ForbiddenError(403, "Forbidden", "you may not"))
    with pytest.raises(ForbiddenError):
        await Waiter(FakeClock(), 60.0).until_passed(check)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CommandError("two\nlines"), "kftrainer check: two lines\n"),
        (KubeError("no answer"), "kftrainer check: no answer\n"),
        (
            UnauthorizedError(401, "Unauthorized", "Unauthorized"),
            "kftrainer check: the API server rejected the credentials: Unauthorized\n",
        ),
        (
            ExceptionGroup(
                "g", [KubeError("no answer"), ExceptionGroup("h", [KubeError("no\nup")])]
            ),
            "kftrainer check: no answer; no up\n",
        ),
    ],
)
@pytest.mark.usefixtures("logging_as_before")
def test_an_error_is_one_line(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> int:
        raise error

    assert run_on_cluster("check", work()) == 1
    assert capsys.readouterr().err == message


@pytest.mark.usefixtures("logging_as_before")
def test_unexpected_error_is_one_line_after_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> int:
        raise ExceptionGroup("workers", [TypeError("no such\nthing")])

    assert run_on_cluster("purge", work()) == 1
    *log, last = capsys.readouterr().err.splitlines()
    assert last == (
        "kftrainer purge: unexpected error, see the traceback in the log: TypeError: no such thing"
    )
    assert any("command_crashed" in line for line in log)
