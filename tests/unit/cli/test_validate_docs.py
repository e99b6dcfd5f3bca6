"""The commands in docs/validate.md, run once more."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kftrainer.cli.main import main

ROOT = Path(__file__).parent.parent.parent.parent


def commands() -> Iterator[tuple[str, str]]:
    """Each command in the document, and what it printed."""
    text = (ROOT / "docs" / "validate.md").read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, _, rest = command.partition("\n")
            yield first, rest


def test_commands_print_the_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "hack" / "demo", tmp_path / "hack" / "demo")
    monkeypatch.chdir(tmp_path)
    ran, code = 0, 0
    for command, printed in commands():
        match shlex.split(command):
            case ["cat", file]:
                Path(file).write_text(printed)
            case ["echo", "$?"]:
                assert printed == f"{code}\n"
            case ["kftrainer", *arguments]:
                code = main(arguments)
                out, err = capsys.readouterr()
                assert out + err == printed
                ran += 1
            case other:
                pytest.fail(f"unsupported command: {other}")
    assert ran == 5
