"""Logs as the operator's collector and a person at a terminal see them."""

import json
import os
import pty
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest


def program(body: str, level: str = "info", *, form: str = "None") -> list[str]:
    text = (
        "import logging, structlog\n"
        "from kftrainer import logs\n"
        f"logs.set_up({level!r}, {form})\n"
        "log = structlog.get_logger('ours')\n"
        f"{body}\n"
    )
    return [sys.executable, "-c", text]


def entries(body: str, level: str = "info") -> list[dict[str, Any]]:
    """What a program writes whose standard error is a pipe."""
    done = subprocess.run(program(body, level), stderr=subprocess.PIPE, check=True, timeout=30)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_an_entry_is_one_line_of_json() -> None:
    (entry,) = entries("log.info('job.started', job='pi', when={1, 2})")
    moment = datetime.fromisoformat(entry.pop("timestamp"))
    assert moment.utcoffset() is not None
    assert not moment.utcoffset()
    assert entry == {
        "event": "job.started",
        "job": "pi",
        "when": "{1, 2}",
        "level": "info",
        "logger": "ours",
    }


def test_context_is_in_every_entry_and_the_entry_itself_wins() -> None:
    body = (
        "with structlog.contextvars.bound_contextvars(name='pi', step=1):\n"
        "    log.info('one', step=2)\n"
        "    logging.getLogger('theirs').warning('two %s', 'things')\n"
    )
    one, two = entries(body)
    assert (one["name"], one["step"]) == ("pi", 2)
    assert (two["name"], two["event"], two["logger"], two["level"]) == (
        *("pi", "two things", "theirs", "warning"),
    )


def test_keys_are_in_the_same_order_in_every_entry() -> None:
    body = (
        "with structlog.contextvars.bound_contextvars(name='pi', namespace='a'):\n"
        "    log.info('one', kind='x')\n"
        "with structlog.contextvars.bound_contextvars(namespace='a', name='pi'):\n"
        "    log.info('two', kind='x')\n"
    )
    order = ["timestamp", "level", "logger", "event", "kind", "name", "namespace"]
    assert [list(entry) for entry in entries(body)] == [order, order]


def test_less_than_the_level_is_not_written() -> None:
    body = "log.info('quiet'); log.warning('loud'); logging.getLogger('theirs').info('quiet')"
    assert [entry["event"] for entry in entries(body, "warning")] == ["loud"]


def test_a_library_that_would_write_secrets_is_never_at_debug() -> None:
    body = (
        "logging.getLogger('kubernetes_asyncio.client.rest').debug('a secret')\n"
        "logging.getLogger('other').debug('fine')\n"
    )
    assert [entry["event"] for entry in entries(body, "debug")] == ["fine"]


def test_a_traceback_does_not_show_variables() -> None:
    body = (
        "def fail(token):\n"
        "    raise ValueError('no good')\n"
        "try:\n"
        "    fail('pass' + 'word')\n"
        "except ValueError:\n"
        "    log.exception('failed')\n"
    )
    (entry,) = entries(body)
    (raised,) = entry["exception"]
    assert (raised["exc_type"], raised["exc_value"]) == ("ValueError", "no good")
    assert "password" not in json.dumps(entry)


def test_values_that_json_cannot_represent_are_logged_as_text() -> None:
    (entry,) = entries("log.info('odd', number=2**80, text='\\ud800', of={3: 4})")
    assert entry["number"] == 2**80


def on_terminal(argv: list[str]) -> str:
    """What a program writes whose standard error is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(argv, stderr=theirs) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                output += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        assert process.wait(30) == 0
    os.close(ours)
    return output.decode()


@pytest.mark.parametrize("form", ["None", "'console'"])
def test_terminal_output_is_text(form: str) -> None:
    text = on_terminal(program("log.info('job.started', job='pi')", form=form))
    assert "job.started" in text
    assert not text.startswith("{")


def test_json_format_can_be_selected_at_a_terminal() -> None:
    text = on_terminal(program("log.info('job.started')", form="'json'"))
    assert json.loads(text)["event"] == "job.started"
