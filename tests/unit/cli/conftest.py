"""What the tests of commands have in common."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """A command sets logging up for its process, which here is that of all tests."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**before)
