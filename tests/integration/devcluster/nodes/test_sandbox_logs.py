"""Logs of containers: format, rotation, and a disk that is full."""

import re
from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.sandbox.protocol import ContainerStartError, Exit
from kftrainer.devcluster.waiting import until
from tests.support.pods import running

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")


async def test_lines_have_times_streams_and_tags(tmp_path: Path) -> None:
    script = "import os; os.write(1, b'a' * 40000 + b'\\nb\\n\\nc'); os.write(2, b'error\\n')"
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "python", "-c", script)
        await pods.sandbox.wait_container(container)
        lines = pods.lines(container)
    out = [(tag, len(text)) for _, stream, tag, text in lines if stream == "stdout"]
    assert out == [("P", 16384), ("P", 16384), ("F", 7232), ("F", 1), ("F", 0), ("P", 1)]
    assert [line[1:] for line in lines if line[1] == "stderr"] == [("stderr", "F", "error")]
    assert all(TIME.fullmatch(time) for time, *_ in lines)


async def test_output_is_in_the_log_while_the_container_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "sh", "-c", "echo one; exec sleep 600")

        async def written() -> bool:
            return pods.output(container) == "one\n"

        await until(written, within=10, what="the first line")


async def test_a_log_is_rotated_at_ten_megabytes(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "sh", "-c", "yes 0123456789abcdef | head -n 300000")
        await pods.sandbox.wait_container(container)
    log, old = tmp_path / f"{container}.log", tmp_path / f"{container}.log.1"
    assert old.stat().st_size <= 10 * 1024 * 1024 < old.stat().st_size + 100
    lines = old.read_text().splitlines() + log.read_text().splitlines()
    assert len(lines) == 300_000
    assert all(line.endswith(" stdout F 0123456789abcdef") for line in lines)


async def test_a_full_disk_does_not_block_the_container(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        spec = pods.spec("pod", "sh", "-c", "yes | head -c 1000000", log="/dev/full")
        await pods.sandbox.start_container(spec)
        assert await pods.sandbox.wait_container(spec.id) == Exit(0)
        assert (await pods.run("pod", "echo", "next")) == (Exit(0), "next\n")
    messages = pods.messages.read_text().splitlines()
    assert messages == [
        "output is dropped, writing /dev/full failed: [Errno 28] No space left on device"
    ]


async def test_a_log_that_cannot_be_opened_fails_the_start(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        spec = pods.spec("pod", "true", log="/nope/log")
        with pytest.raises(ContainerStartError) as raised:
            await pods.sandbox.start_container(spec)
    assert str(raised.value) == (
        "failed to create task: unable to start container process: "
        "No such file or directory: /nope/log"
    )
