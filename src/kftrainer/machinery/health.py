"""Health and readiness probes with named checks, answered as controller-runtime answers them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.server import NOT_FOUND, Handler, HttpRequest, HttpResponse

log = structlog.get_logger(__name__)

# What is wrong, or None if nothing is. It is told to those who ask for this one check only:
# probes are open to everybody.
Check = Callable[[], Awaitable[str | None]]

CHECK_WITHIN = 1.0
LOOK_EVERY = 1.0
HEALTHY = 200
SICK = 500


async def ping() -> str | None:
    """Always well: whoever is answered at all knows that the event loop runs."""
    return None


@dataclass(frozen=True, slots=True)
class Finding:
    """How one check went."""

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
    """The answer for all checks together; one that is not good always tells of each."""
    healthy = all(finding.excluded or not finding.problem for finding in findings)
    if healthy and not verbose:
        return HttpResponse(HEALTHY, "ok")
    lines = [str(finding) for finding in sorted(findings, key=lambda finding: finding.name)]
    if unknown:
        names = ", ".join(f'"{name}"' for name in sorted(unknown))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
    # The word is the same whatever the endpoint is called; so it is in controller-runtime.
    lines.append("healthz check passed" if healthy else "healthz check failed")
    return HttpResponse(HEALTHY if healthy else SICK, "".join(f"{line}\n" for line in lines))


class Probe:
    """One endpoint: its checks together, or one of them by its name."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks) or {"ping": ping}

    async def all(self, query: Collection[tuple[str, str]]) -> HttpResponse:
        """All checks at once, but for those that the query excludes."""
        excluded = {value for name, value in query if name == "exclude"}
        findings = await self.findings(excluded)
        findings += [Finding(name, None, excluded=True) for name in self._checks.keys() & excluded]
        for finding in findings:
            if finding.problem:
                log.info("health.check_failed", check=finding.name, problem=finding.problem)
        verbose = any(name == "verbose" for name, _ in query)
        return summary(findings, excluded - self._checks.keys(), verbose=verbose)

    async def findings(self, excluded: Collection[str] = ()) -> list[Finding]:
        """How the others go, each in its own time."""
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._finding(name), name=f"check-{name}")
                for name in self._checks
                if name not in excluded
            ]
        return [task.result() for task in running]

    async def one(self, name: str) -> HttpResponse:
        """The check of this name."""
        if name not in self._checks:
            return NOT_FOUND
        problem = (await self._finding(name)).problem
        return (
            HttpResponse(SICK, f"internal server error: {problem}\n")
            if problem
            else HttpResponse(HEALTHY, "ok")
        )

    async def _finding(self, name: str) -> Finding:
        try:
            async with asyncio.timeout(CHECK_WITHIN):
                return Finding(name, await self._checks[name]())
        except TimeoutError:
            return Finding(name, f"it did not answer within {CHECK_WITHIN:g} s")
        except Exception as error:  # noqa: BLE001  a check that is broken has failed, and is named
            return Finding(name, f"it raised {error!r}")


class ReadinessMetrics:
    """Keeps telling in metrics how the checks of readiness go; run it as a service.

    It looks all along, as a scrape waits for nobody and a check may have to be waited for.
    """

    name = "readiness-metrics"

    def __init__(self, readiness: Probe, metrics: Metrics, *, clock: Clock) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._clock = clock

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Look until `stop` is set."""
        ready()
        while True:
            for finding in await self._readiness.findings():
                self._metrics.readiness(finding.name, passed=not finding.problem)
            if await pause(self._clock, LOOK_EVERY, unless=stop):
                return


def probes(endpoints: Mapping[str, Probe]) -> Handler:
    """Handles requests for endpoints by their names, such as `healthz` and `readyz`."""

    async def handle(asked: HttpRequest) -> HttpResponse:
        endpoint, _, check = asked.path.strip("/").partition("/")
        probe = endpoints.get(endpoint)
        if probe is None:
            return NOT_FOUND
        return await (probe.one(check) if check else probe.all(asked.query))

    return handle
