"""Files of volumes on disk: atomic updates, modes, hostPath types and paths in volumes."""

import os
import socket
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.kubelet.inputs.atomic_files import File, write_files
from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError
from kftrainer.devcluster.nodes.kubelet.inputs.folders import (
    check_host_path,
    create_folder,
    remove_tree,
    sub_path,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def visible(folder: Path) -> dict[str, bytes]:
    """Return the content of all visible files by path."""
    return {
        str(Path(where, name).relative_to(folder)): Path(where, name).read_bytes()
        for top in sorted(folder.iterdir())
        if not top.name.startswith("..")
        for where, names in _walk(top)
        for name in names
    }


def _walk(top: Path) -> list[tuple[str, list[str]]]:
    if not top.is_dir():
        return [(str(top.parent), [top.name])]
    return [(where, names) for where, _, names in os.walk(top)]


def test_files_are_links_to_the_current_version(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o644)}, NOW)
    links = {entry.name: os.readlink(entry) for entry in os.scandir(tmp_path) if entry.is_symlink()}
    version = links.pop("..data")
    assert version.startswith("..2026_01_01_00_00_00.")
    assert links == {"a": "..data/a", "d": "..data/d"}
    assert visible(tmp_path) == {"a": b"1", "d/b": b"2"}


@pytest.mark.parametrize("mode", [0o644, 0o400, 0o000, 0o777, 0o4755])
def test_mode_of_a_file_does_not_depend_on_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_files(tmp_path, {"a": File(b"1", mode)}, NOW)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "..data").stat().st_mode) == 0o755


def test_update_replaces_adds_and_removes_files(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o644)}, NOW)
    old = (tmp_path / "..data").readlink()
    assert write_files(tmp_path, {"a": File(b"3", 0o644), "c": File(b"4", 0o644)}, LATER)
    assert visible(tmp_path) == {"a": b"3", "c": b"4"}
    assert not (tmp_path / old).exists()
    current = (tmp_path / "..data").readlink().name
    assert {entry.name for entry in tmp_path.iterdir()} == {"..data", current, "a", "c"}


def test_equal_files_are_not_written_again(tmp_path: Path) -> None:
    files = {"a": File(b"1", 0o644)}
    assert write_files(tmp_path, files, NOW)
    inode = (tmp_path / "a").stat().st_ino
    (tmp_path / "a").unlink()
    assert not write_files(tmp_path, files, LATER)
    assert (tmp_path / "a").stat().st_ino == inode


def test_no_files_are_an_empty_volume(tmp_path: Path) -> None:
    assert write_files(tmp_path, {}, NOW)
    assert visible(tmp_path) == {}


def test_failed_update_keeps_the_old_files(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o644)}, NOW)
    names = sorted(entry.name for entry in tmp_path.iterdir())
    conflicting = {"a": File(b"2", 0o644), "b": File(b"", 0o644), "b/c": File(b"", 0o644)}
    with pytest.raises(OSError, match="b"):
        write_files(tmp_path, conflicting, LATER)
    assert visible(tmp_path) == {"a": b"1"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == names


def test_remains_of_an_interrupted_update_are_removed(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o644)}, NOW)
    (tmp_path / "..2025_01_01_00_00_00.x").mkdir()
    (tmp_path / "..data_tmp").symlink_to("..2025_01_01_00_00_00.x")
    assert write_files(tmp_path, {"a": File(b"2", 0o644)}, LATER)
    current = (tmp_path / "..data").readlink().name
    assert {entry.name for entry in tmp_path.iterdir()} == {"..data", current, "a"}


def test_folder_has_the_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        create_folder(tmp_path / "a" / "b", 0o777)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o777


@pytest.mark.parametrize(
    ("kind", "is_folder"), [("", True), ("DirectoryOrCreate", True), ("FileOrCreate", False)]
)
def test_missing_host_path_is_created(tmp_path: Path, kind: str, is_folder: bool) -> None:
    path = tmp_path / "new"
    for _ in range(2):
        assert check_host_path(str(path), kind) == path
    assert (path.is_dir(), path.is_file()) == (is_folder, not is_folder)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("missing", "Directory", "is not a directory"),
        ("file", "Directory", "is not a directory"),
        ("file", "DirectoryOrCreate", "is not a directory"),
        ("folder", "File", "is not a file"),
        ("folder", "FileOrCreate", "is not a file"),
        ("file", "Socket", "is not a socket file"),
        ("file", "CharDevice", "is not a character device"),
        ("file", "BlockDevice", "is not a block device"),
        ("file", "Nonsense", "Nonsense is an invalid volume type"),
        ("../x", "", "must not contain '..'"),
    ],
)
def test_host_path_of_another_type_is_an_error(
    tmp_path: Path, name: str, kind: str, message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as raised:
        check_host_path(f"{tmp_path}/{name}", kind)
    assert message in str(raised.value)
    assert not (tmp_path / "missing").exists()


def test_host_path_of_each_type_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, kind in (
            (tmp_path, "Directory"),
            (tmp_path / "file", "File"),
            (tmp_path / "file", ""),
            (tmp_path / "socket", "Socket"),
            (Path("/dev/null"), "CharDevice"),
        ):
            assert check_host_path(str(path), kind) == path


def test_missing_sub_path_is_created_with_the_mode_of_the_volume(tmp_path: Path) -> None:
    create_folder(tmp_path / "v", 0o770)
    assert sub_path(tmp_path / "v", "a/b") == tmp_path / "v" / "a" / "b"
    for folder in ("a", "a/b"):
        assert stat.S_IMODE((tmp_path / "v" / folder).stat().st_mode) == 0o770


def test_sub_path_of_a_file_is_its_current_version(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": File(b"1", 0o644)}, NOW)
    assert sub_path(tmp_path, "a") == tmp_path / (tmp_path / "..data").readlink() / "a"


@pytest.mark.parametrize("target", ["/etc", "../outside", "../volume2"])
def test_sub_path_cannot_leave_the_volume_by_a_link(tmp_path: Path, target: str) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "outside").mkdir()
    (volume / "link").symlink_to(target)
    for relative in ("link", "link/new"):
        with pytest.raises(OSError, match="leads out of the volume"):
            sub_path(volume, relative)
    assert list((tmp_path / "outside").iterdir()) == []
    assert not (tmp_path / "volume2").exists()


def test_tree_is_removed_with_read_only_folders_and_without_following_links(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    create_folder(keep, 0o500)
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "b" / "file").touch()
    (tmp_path / "tree" / "link").symlink_to(keep)
    (tmp_path / "tree" / "a" / "b").chmod(0)
    (tmp_path / "tree" / "a").chmod(0)
    assert remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    assert stat.S_IMODE(keep.stat().st_mode) == 0o500
    assert remove_tree(tmp_path / "tree")
