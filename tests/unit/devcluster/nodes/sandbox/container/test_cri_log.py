import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.devcluster.nodes.sandbox.container import cri_log
from kftrainer.devcluster.nodes.sandbox.container.cri_log import LineSplitter, LogFile, timestamp


def log_file(path: Path, report: Callable[[str], None] = pytest.fail, most: int = 1000) -> LogFile:
    return LogFile(str(path), lambda: 1_700_000_000_000_000_001, report, most)


def test_a_time_has_nine_digits() -> None:
    assert timestamp(1_700_000_000_000_000_012) == "2023-11-14T22:13:20.000000012Z"


def test_long_lines_are_split() -> None:
    splitter = LineSplitter(longest=3)
    lines = [*splitter.feed(b"abcdefg\nab"), *splitter.feed(b"c\nabcd"), *splitter.end()]
    assert lines == [
        (b"abc", False), (b"def", False), (b"g", True), (b"abc", True),
        (b"abc", False), (b"d", False),
    ]  # fmt: skip


@given(st.lists(st.text("ab\n").map(str.encode)))
def test_lines_add_up_to_the_output(pieces: list[bytes]) -> None:
    splitter = LineSplitter(longest=3)
    lines = [line for piece in pieces for line in splitter.feed(piece)] + [*splitter.end()]
    joined = b"".join(line + (b"\n" if complete else b"") for line, complete in lines)
    assert joined == b"".join(pieces)
    assert all(len(line) <= 3 for line, _ in lines)


def test_entries_of_a_log(tmp_path: Path) -> None:
    log = log_file(tmp_path / "log")
    log.write("stderr", iter([(b"a", False), (b"b", True)]))
    log.close()
    time = "2023-11-14T22:13:20.000000001Z"
    assert (tmp_path / "log").read_text() == f"{time} stderr P a\n{time} stderr F b\n"


def test_a_log_is_continued_and_rotated_before_it_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 950)
    log = log_file(path)
    entry = "2023-11-14T22:13:20.000000001Z stdout F word\n"
    for _ in range(3):
        log.write("stdout", iter([(b"word", True)]))
    log.close()
    old = Path(f"{path}.1").read_text()
    assert (old, path.read_text().count("word")) == ("x" * 950 + entry, 2)


def test_lines_are_dropped_whole_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []
    log = log_file(tmp_path / "log", reports.append)
    log.write("stdout", iter([(b"before", True)]))
    with monkeypatch.context() as patched:
        real = cri_log.os.write

        def half(file: int, data: bytes) -> int:
            return real(file, data[: len(data) // 2])

        patched.setattr(cri_log.os, "write", half)
        log.write("stdout", iter([(b"lost", True), (b"lost", True)]))
    log.write("stdout", iter([(b"after", True)]))
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split(" F ")[1] for line in lines] == ["before", "after"]
    assert len(reports) == 1


def test_a_failed_rotation_keeps_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    log = log_file(tmp_path / "log", reports.append, most=60)
    log.write("stdout", iter([(b"before", True)]))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(cri_log.os, "open", full)
        log.write("stdout", iter([(b"lost", True)]))
    log.write("stdout", iter([(b"after", True)]))
    log.close()
    texts = [(tmp_path / name).read_text().split(" F ")[1] for name in ("log.1", "log")]
    assert (texts, len(reports)) == (["before\n", "after\n"], 1)
