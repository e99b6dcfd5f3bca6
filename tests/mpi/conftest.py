"""Requirements of hosts as network namespaces."""

import shutil

import pytest


@pytest.fixture(scope="session", autouse=True)
def _needs_namespaces() -> None:
    """Fail with the names of missing programs."""
    missing = [name for name in ("ip", "mount", "unshare") if shutil.which(name) is None]
    if missing:
        pytest.fail(f"install iproute2, mount and util-linux: {missing} not found", pytrace=False)
