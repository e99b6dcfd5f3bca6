"""Health and readiness probes with named checks, in controller-runtime's format.

The program chooses the checks: those of `kftrainer manager` are in `cli.manager_setup.assembly`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.server import NOT_FOUND, Handler, HttpRequest, HttpResponse

log = structlog.get_logger(__name__)

# Returns the problem, or None. The problem is shown only in requests for this single check, because
# probes are open to all clients.
Check = Callable[[], Awaitable[str | None]]

CHECK_WITHIN = 1.0
CHECK_EVERY = 1.0
HEALTHY = 200
UNHEALTHY = 500


async def ping() -> str | None:
    """Always pass: any response shows that the event loop runs."""
    return None


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    problem: str | None
    excluded: bool = False

    def __str__(self) -> str:
        if self.excluded:
            return f"[+]{self.name} excluded: ok"
        return f"[-]{self.name} failed: reason withheld" if self.problem else f"[+]{self.name} ok"


def summary(
    findings: Collection[Finding], unknown: Collection[str], *, verbose: bool
) -> HttpResponse:
    """Return the response for all checks together; a failed one always lists each check."""
    healthy = all(finding.excluded or not finding.problem for finding in findings)
    if healthy and not verbose:
        return HttpResponse(HEALTHY, "ok")
    lines = [str(finding) for finding in sorted(findings, key=lambda finding: finding.name)]
    if unknown:
        names = ", ".join(f'"{name}"' for name in sorted(unknown))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
    # The same text for every endpoint, as in controller-runtime.
    lines.append("healthz check passed" if healthy else "healthz check failed")
    return HttpResponse(HEALTHY if healthy else UNHEALTHY, "".join(f"{line}\n" for line in lines))


class Probe:
    """One endpoint: all of its checks together, or a single one by name."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks) or {"ping": ping}

    async def all(self, query: Collection[tuple[str, str]]) -> HttpResponse:
        """Run all checks concurrently, except those that the query excludes."""
        excluded = {value for name, value in query if name == "exclude"}
        findings = await self.findings(excluded)
        findings += [Finding(name, None, excluded=True) for name in self._checks.keys() & excluded]
        for finding in findings:
            if finding.problem:
                log.info("health_check_failed", check=finding.name, problem=finding.problem)
        verbose = any(name == "verbose" for name, _ in query)
        return summary(findings, excluded - self._checks.keys(), verbose=verbose)

    async def findings(self, excluded: Collection[str] = ()) -> list[Finding]:
        """Run the checks that are not excluded concurrently, each with its own timeout."""
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._finding(name), name=f"check-{name}")
                for name in self._checks
                if name not in excluded
            ]
        return [task.result() for task in running]

    async def one(self, name: str) -> HttpResponse:
        """Run the check with this name."""
        if name not in self._checks:
            return NOT_FOUND
        problem = (await self._finding(name)).problem
        return (
            HttpResponse(UNHEALTHY, f"internal server error: {problem}\n")
            if problem
            else HttpResponse(HEALTHY, "ok")
        )

    async def _finding(self, name: str) -> Finding:
        try:
            async with asyncio.timeout(CHECK_WITHIN):
                return Finding(name, await self._checks[name]())
        except TimeoutError:
            return Finding(name, f"it did not finish within {CHECK_WITHIN:g} s")
        except Exception as error:  # noqa: BLE001  a check that raises has failed and is named
            return Finding(name, f"it raised {error!r}")


class ReadinessMetrics:
    """Exports the results of the readiness checks as metrics; a Runnable.

    The checks run continuously, because a scrape cannot wait for a check to complete.
    """

    name = "readiness-metrics"

    def __init__(self, readiness: Probe, metrics: Metrics, *, clock: Clock) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._clock = clock

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run the checks repeatedly until `stop` is set."""
        ready()
        while True:
            for finding in await self._readiness.findings():
                self._metrics.readiness(finding.name, passed=not finding.problem)
            if await pause(self._clock, CHECK_EVERY, stop=stop):
                return


def probes(endpoints: Mapping[str, Probe]) -> Handler:
    """Return a handler that serves the probes by endpoint name, such as `healthz`."""

    async def handle(request: HttpRequest) -> HttpResponse:
        endpoint, _, check = request.path.strip("/").partition("/")
        probe = endpoints.get(endpoint)
        if probe is None:
            return NOT_FOUND
        return await (probe.one(check) if check else probe.all(request.query))

    return handle
