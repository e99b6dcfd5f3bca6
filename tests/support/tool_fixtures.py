"""Fixtures for helm, promtool and Prometheus."""

from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.pytest_plugin import program


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def helm_program(pytestconfig: pytest.Config) -> Path:
    """The path of helm."""
    return await program(pytestconfig, versions.HELM)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def promtool_program(pytestconfig: pytest.Config) -> Path:
    """The path of promtool."""
    return await program(pytestconfig, versions.PROMTOOL)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def prometheus_program(pytestconfig: pytest.Config) -> Path:
    """The path of Prometheus."""
    return await program(pytestconfig, versions.PROMETHEUS)
