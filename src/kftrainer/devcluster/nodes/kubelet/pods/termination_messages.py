"""The message with which a container ends: of its file, or the end of its log."""

from pathlib import Path

from kftrainer.devcluster.nodes.kubelet.pods.states import Object

LONGEST_MESSAGE = 4096  # bytes
LONGEST_LOG, MOST_LINES = 2048, 80
CRI_FIELDS = 3  # time, stream and tag, before the text


def termination_message(file: Path, log: Path, container: Object, code: int) -> str:
    """Return the message of a container that ended with this exit code."""
    message = _start_of(file)
    policy = container.get("terminationMessagePolicy", "File")
    if message or code == 0 or policy != "FallbackToLogsOnError":
        return message
    return end_of_log(log)


def _start_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(LONGEST_MESSAGE).decode(errors="replace")
    except OSError:
        return ""


def end_of_log(log: Path) -> str:
    """Return the last lines of a log, at most 2048 bytes."""
    try:
        with log.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - 4 * LONGEST_LOG))
            lines = opened.read().splitlines(keepends=True)
    except OSError:
        return ""
    texts = [line.split(b" ", CRI_FIELDS)[CRI_FIELDS:] for line in lines[-MOST_LINES:]]
    text = b"".join(part[0] for part in texts if part)
    return text[-LONGEST_LOG:].decode(errors="replace")
