"""Fixtures for all tests, and their order: quick suites first, and no long file at the end."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines are noisy: the duration of an example is no measure of the code.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

pytest_plugins = ["kftrainer.devcluster.pytest_plugin", "tests.support.tool_fixtures", "pytester"]

SUITES = ("unit", "integration", "e2e")
# The end-to-end files that take longest. They start before the others: while a long file that
# started last runs, the other processes would be idle.
LONGEST = (
    "test_golden_cases.py",
    "test_chart_upgrade.py",
    "test_chart_install.py",
    "test_chart_manager_policy.py",
    "test_prometheus.py",
    "test_rewritten_jobsets.py",
    "test_trainjob_ends.py",
)
HERE = Path(__file__).parent


def pytest_configure() -> None:
    """Have programs that tests interrupt listen, also if a shell runs the tests in the background.

    Such a shell has SIGINT ignored, which every program that is started from here would inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _suite(item: pytest.Item) -> int:
    top = item.path.relative_to(HERE).parts[0]
    return SUITES.index(top) if top in SUITES else -1


def _order(item: pytest.Item) -> tuple[int, int]:
    name = item.path.name
    return _suite(item), LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests answer before anything is built; a folder's name is its tests' marker."""
    for item in items:
        suite = _suite(item)
        if suite > 0:
            item.add_marker(SUITES[suite])
    items.sort(key=_order)


@pytest.fixture(autouse=True)
async def no_task_left_behind() -> AsyncIterator[None]:
    """Fail a test that leaves a task running."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left running: {left}"
