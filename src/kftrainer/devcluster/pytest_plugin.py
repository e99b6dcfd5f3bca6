"""pytest fixtures for a real control plane; `-p kftrainer.devcluster.pytest_plugin`.

A test marked `integration` gets etcd and kube-apiserver; one marked `e2e` also gets the controllers
of Kubernetes, the JobSet controller and fake nodes. One marked `process_nodes` gets the same, but
with nodes whose pods are processes on this machine. Each kind is started once per session, when the
first test uses it; every test gets its own namespace.
"""

import os
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.artifacts.versions import KUBECTL, Binary
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import BARE, FULL, PROCESSES, Shape
from kftrainer.devcluster.controlplane import ControlPlane, gather_supplies, running
from kftrainer.devcluster.errors import DevClusterError, MissingPartError, in_words
from kftrainer.devcluster.processes.process import tail
from kftrainer.devcluster.progress import Progress

REQUIRE_REAL = "KFTRAINER_REQUIRE_REAL"
UNAVAILABLE = "no real control plane: "
LOG_LINES = 60
log_sizes = pytest.StashKey[dict[Path, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the CRDs that the control planes install."""
    parser.addini("devcluster_crds", "files with CRDs to install", type="paths", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line("markers", "integration: needs a real etcd and kube-apiserver")
    config.addinivalue_line("markers", "e2e: needs a whole cluster with JobSet and fake nodes")
    config.addinivalue_line("markers", "process_nodes: needs nodes that run pods as processes")


class _Terminal:
    """The terminal behind pytest's capturing, so that the progress of long builds is visible."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._capture = config.pluginmanager.getplugin("capturemanager")

    def write(self, text: str) -> None:
        if self._reporter is None:
            return
        with self._capture.global_and_fixture_disabled() if self._capture else nullcontext():
            if not self.isatty():
                self._reporter.ensure_newline()
            self._reporter.write(text, flush=True)

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""

    def isatty(self) -> bool:
        return self._reporter is not None and bool(self._reporter.isatty)


@contextmanager
def _skip_if_unavailable() -> Iterator[None]:
    """Skip, or fail with KFTRAINER_REQUIRE_REAL=1, if a required program is not available."""
    try:
        yield
    except OSError as error:
        pytest.fail(in_words(error), pytrace=False)
    except MissingPartError as error:
        if os.environ.get(REQUIRE_REAL) == "1":
            pytest.fail(f"{UNAVAILABLE}{error}", pytrace=False)
        pytest.skip(f"{UNAVAILABLE}{error}")


async def for_session(config: pytest.Config, shape: Shape) -> AsyncIterator[ControlPlane]:
    """Yield a control plane; for session fixtures."""
    progress = Progress(_Terminal(config))
    with _skip_if_unavailable():
        await gather_supplies(shape, cache_paths.cache_home(), progress)
    try:
        async with running(shape, progress=progress) as plane:
            yield plane
    except DevClusterError as error:
        pytest.fail(str(error), pytrace=False)  # ends with the log of the failed process


def _with_crds(config: pytest.Config, shape: Shape) -> Shape:
    return replace(shape, crd_files=tuple(config.getini("devcluster_crds")))


async def _for_session(config: pytest.Config, shape: Shape) -> AsyncIterator[ControlPlane]:
    """Yield a control plane with the project's CRDs; for session fixtures."""
    async for plane in for_session(config, _with_crds(config, shape)):
        yield plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bare_control_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """etcd and kube-apiserver, shared by the session; tests use `control_plane`."""
    async for plane in for_session(pytestconfig, _with_crds(pytestconfig, BARE)):
        yield plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def full_control_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """The whole cluster, shared by the session; tests use `control_plane`."""
    async for plane in for_session(pytestconfig, _with_crds(pytestconfig, FULL)):
        yield plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def process_control_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """The whole cluster with process nodes, shared by the session; tests use `control_plane`."""
    async for plane in for_session(pytestconfig, _with_crds(pytestconfig, PROCESSES)):
        yield plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kubectl_program(pytestconfig: pytest.Config) -> Path:
    """The path of kubectl, built first if none is recent enough."""
    return await program(pytestconfig, KUBECTL)


async def program(config: pytest.Config, binary: Binary) -> Path:
    """Return the path of a program, built first if it is missing; for session fixtures."""
    progress = Progress(_Terminal(config))
    with _skip_if_unavailable():
        found = await binaries.provide([binary], cache=cache_paths.cache_home(), progress=progress)
    return found[binary.name]


@pytest.fixture
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The session's control plane, according to the test's marker."""
    if request.node.get_closest_marker("process_nodes"):
        plane: ControlPlane = request.getfixturevalue("process_control_plane")
    elif request.node.get_closest_marker("e2e"):
        plane = request.getfixturevalue("full_control_plane")
    elif request.node.get_closest_marker("integration"):
        plane = request.getfixturevalue("bare_control_plane")
    else:
        pytest.fail(
            "mark the test `integration`, `e2e` or `process_nodes` to select the cluster it needs"
        )
    with watched(request.node, plane):
        yield plane


@contextmanager
def watched(test: pytest.Item, plane: ControlPlane) -> Iterator[None]:
    """Add the logs to the report of a failed test, and check that all processes still run."""
    logs = [process.log for process in plane.processes]
    test.stash[log_sizes] = {log: log.stat().st_size for log in logs}
    yield
    for process in plane.processes:
        process.check()


@pytest_asyncio.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[ApiClient]:
    """The administrator's API client."""
    async with control_plane.client() as client:
        yield client


@pytest_asyncio.fixture
async def namespace(control_plane: ControlPlane, api: ApiClient) -> str:
    """A new namespace."""
    return await control_plane.create_namespace(api)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the control plane logged during a failed test to its report."""
    report = yield
    if report.failed:
        for log, size in item.stash.get(log_sizes, {}).items():
            if output := tail(log, LOG_LINES, start=size):
                report.sections.append((f"log of {log.stem} during the test", output))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report prominently how many tests were skipped because there was no control plane."""
    missed = [
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and UNAVAILABLE in report.longrepr[2]
    ]
    if missed:
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        terminalreporter.line(
            f"{len(missed)} tests did not run, because a real control plane could not be had:"
        )
        for reason in sorted(set(missed)):
            terminalreporter.line(f"  {reason.partition(UNAVAILABLE)[2]}")
