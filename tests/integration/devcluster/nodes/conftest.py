"""The sandbox of the tests here; where the kernel forbids it, they are skipped."""

import pytest

from tests.support.pods import require_namespaces


@pytest.fixture(autouse=True, scope="package")
def namespaces() -> None:
    """Skip, or fail with KFTRAINER_REQUIRE_REAL=1, where namespaces are not available."""
    require_namespaces()
