import sys
from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.kubelet.images import ImageError, Images, outermost


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with a package that is installed as a link."""
    folder, base, linked = (tmp_path / name for name in ("env", "python", "linked"))
    (base / "bin").mkdir(parents=True)
    linked.mkdir()
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "x.pth").write_text(f"import y\n{linked}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    return folder


def test_environment_exposes_its_python_and_its_linked_packages(environment: Path) -> None:
    selected = Images({"a": environment}).select("a")
    parent = environment.parent
    assert (selected.image.path[0], selected.image.expose) == (
        str(environment / "bin"),
        (str(environment), str(parent / "linked"), str(parent / "python")),
    )


def test_longest_pattern_selects_and_the_exact_name_precedes(tmp_path: Path) -> None:
    names = ("a/*", "a/b*", "a/bc", "*")
    folders = {name: tmp_path / str(number) for number, name in enumerate(names)}
    for folder in folders.values():
        folder.mkdir()
    images = Images(folders)
    found = [images.select(name).folder.name for name in ("a/x", "a/bx", "a/bc", "z")]
    assert found == ["0", "1", "2", "3"]


def test_other_names_select_the_running_python_unless_only_mapped_ones_are_permitted() -> None:
    assert Images({}).select("python:3").folder == Path(sys.prefix)
    with pytest.raises(ImageError, match="none of the options --image maps this name"):
        Images({}, only_mapped=True).select("python:3")


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is not a folder"):
        Images({"a": tmp_path / "missing"}).select("a")


def test_inner_and_missing_folders_are_left_out(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert outermost([inner, tmp_path / "a", tmp_path / "missing"]) == [tmp_path / "a"]
