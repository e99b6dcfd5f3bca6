from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.sandbox.container.shim import StartError, find_program


def program(folder: Path, mode: int) -> str:
    file = folder / "tool"
    folder.mkdir(exist_ok=True)
    file.write_text("")
    file.chmod(mode)
    return str(file)


def test_a_program_is_the_first_executable_file_of_the_path(tmp_path: Path) -> None:
    program(tmp_path / "a", 0o644)
    found = program(tmp_path / "b", 0o755)
    program(tmp_path / "c", 0o755)
    (tmp_path / "d" / "tool").mkdir(parents=True)
    path = ":".join(str(tmp_path / name) for name in ("d", "none", "a", "b", "c"))
    assert find_program("tool", path) == found
    assert find_program(found, "") == found


def test_a_file_without_permission_is_reported_if_there_is_no_other(tmp_path: Path) -> None:
    program(tmp_path / "a", 0o644)
    with pytest.raises(StartError) as raised:
        find_program("tool", f"{tmp_path}/a:{tmp_path}/b")
    assert str(raised.value) == 'exec: "tool": permission denied'


def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(StartError) as raised:
        find_program("tool", "/nope:/usr/nope")
    assert str(raised.value) == 'exec: "tool": executable file not found in $PATH'
