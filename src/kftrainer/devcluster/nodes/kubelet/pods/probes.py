"""Probes of containers: what one attempt finds, and what a sequence of attempts means."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from kftrainer.devcluster.nodes.kubelet.pods.hooks import FIRST_FAILURE, Target, headers
from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.devcluster.nodes.sandbox.protocol import SandboxError

Kind = Literal["startupProbe", "livenessProbe", "readinessProbe"]
TITLES: dict[Kind, str] = {
    "startupProbe": "Startup",
    "livenessProbe": "Liveness",
    "readinessProbe": "Readiness",
}
FIRST_SUCCESS = 200
LONGEST_OUTPUT = 1024


@dataclass(frozen=True, slots=True)
class Streak:
    """How often a probe had the same result in a row, and its thresholds."""

    success_threshold: int = 1
    failure_threshold: int = 3
    successes: int = 0
    failures: int = 0

    def after(self, *, succeeded: bool) -> "Streak":
        """Return the streak after one more attempt."""
        if succeeded:
            return replace(self, successes=self.successes + 1, failures=0)
        return replace(self, failures=self.failures + 1, successes=0)

    @property
    def verdict(self) -> bool | None:
        """True or False if the probe has reached the threshold of this result, else None."""
        if self.successes >= self.success_threshold:
            return True
        return False if self.failures >= self.failure_threshold else None


def streak_of(probe: Object) -> Streak:
    """Return the thresholds of a probe."""
    return Streak(probe.get("successThreshold") or 1, probe.get("failureThreshold") or 3)


async def attempt(target: Target, probe: Object) -> str:
    """Run the probe once; return "" or why it failed."""
    limit = float(probe.get("timeoutSeconds") or 1)
    if "exec" in probe:
        return await _exec(target, probe["exec"].get("command") or [], limit)
    if "httpGet" in probe:
        return await _http(target, probe["httpGet"], limit)
    if "tcpSocket" in probe:
        port = target.port(probe["tcpSocket"]["port"])
        if port is None:
            return f"unknown port {probe['tcpSocket']['port']!r}"
        ip = probe["tcpSocket"].get("host") or target.ip
        return await target.sandbox.probe_tcp(ip, port, limit)
    return ""


async def _exec(target: Target, argv: list[str], limit: float) -> str:
    try:
        result = await target.sandbox.exec(target.id, argv, limit)
    except TimeoutError:
        return f'command timed out: "{" ".join(argv)}" timed out after {limit:g}s'
    except SandboxError as error:
        return str(error)
    return "" if result.code == 0 else result.output[:LONGEST_OUTPUT] or f"exit code {result.code}"


async def _http(target: Target, action: Object, limit: float) -> str:
    url = target.url(action)
    if url is None:
        return f"unknown port {action['port']!r}"
    status, body = await target.sandbox.probe_http(url, headers(action), limit)
    if status == 0:
        return body
    if FIRST_SUCCESS <= status < FIRST_FAILURE:
        return ""
    return f"HTTP probe failed with statuscode: {status}"


async def observe(
    target: Target,
    kind: Kind,
    probe: Object,
    on_verdict: Callable[[bool], bool],
    on_failure: Callable[[str], None],
) -> None:
    """Run the probe until `on_verdict` returns False; `on_failure` gets each failure's message.

    `on_verdict` is called with the result after each attempt that reaches a threshold.
    """
    await target.clock.sleep(probe.get("initialDelaySeconds") or 0)
    streak = streak_of(probe)
    while True:
        failure = await attempt(target, probe)
        streak = streak.after(succeeded=not failure)
        if failure:
            on_failure(f"{TITLES[kind]} probe failed: {failure}")
        if streak.verdict is not None and not on_verdict(streak.verdict):
            return
        await target.clock.sleep(probe.get("periodSeconds") or 10)
