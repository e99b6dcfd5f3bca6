import asyncio

from kftrainer.devcluster.nodes.kubelet.pods.hooks import Target, run_hook
from kftrainer.devcluster.nodes.kubelet.pods.probes import Streak, attempt, observe
from kftrainer.devcluster.nodes.sandbox.protocol import ExecResult
from tests.support.fake_clock import FakeClock
from tests.support.fake_sandbox import FakeSandbox
from tests.support.node_pods import container


def target(sandbox: FakeSandbox, clock: FakeClock) -> Target:
    own = container(ports=[{"name": "http", "containerPort": 8080}])
    return Target(sandbox, clock, own, "id", "10.244.0.2")


def verdicts(streak: Streak, results: list[bool]) -> list[bool | None]:
    found = []
    for each in results:
        streak = streak.after(succeeded=each)
        found.append(streak.verdict)
    return found


def test_verdict_needs_results_in_a_row() -> None:
    results = [True, True, False, True, False, False, False]
    expected = [None, True, None, None, None, None, False]
    assert verdicts(Streak(success_threshold=2), results) == expected


async def test_failures_have_the_messages_of_the_kubelet() -> None:
    sandbox = FakeSandbox()
    sandbox.exec_result = lambda _: ExecResult(1, "no model")
    tried = target(sandbox, FakeClock())
    probes = [
        {"exec": {"command": ["test"]}},
        {"tcpSocket": {"port": "http"}},
        {"tcpSocket": {"port": "grpc"}},
        {"httpGet": {"port": "http", "path": "ready"}},
    ]
    assert [await attempt(tried, probe) for probe in probes] == [
        "no model",
        "dial tcp 10.244.0.2:8080: connect: connection refused",
        "unknown port 'grpc'",
        "",
    ]


async def test_probe_starts_after_its_delay_and_repeats_with_its_period() -> None:
    sandbox, clock, failures = FakeSandbox(), FakeClock(), list[str]()
    sandbox.exec_result = lambda _: ExecResult(1, "bad")
    probe = {"exec": {"command": ["x"]}, "initialDelaySeconds": 5, "periodSeconds": 2}
    async with asyncio.TaskGroup() as tasks:
        ended = tasks.create_task(
            observe(
                target(sandbox, clock), "livenessProbe", probe, lambda alive: alive, failures.append
            )
        )
        counts = []
        for seconds in (4, 1, 2, 2):
            await clock.advance(seconds)
            counts.append(len(failures))
        assert ended.done()
    assert (counts, failures[0]) == ([0, 1, 2, 3], "Liveness probe failed: bad")


async def test_failing_hook_names_its_command() -> None:
    sandbox = FakeSandbox()
    sandbox.exec_result = lambda _: ExecResult(3, "no\n")
    hook = {"exec": {"command": ["save", "now"]}}
    found = await run_hook(target(sandbox, FakeClock()), hook)
    assert found == "command 'save now' exited with 3: no"
