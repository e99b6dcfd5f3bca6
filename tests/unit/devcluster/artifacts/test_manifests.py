"""Manifests are copied from the cache of Go modules."""

from pathlib import Path

import pytest

from kftrainer.devcluster.artifacts import manifests
from kftrainer.devcluster.artifacts.versions import Manifests
from kftrainer.devcluster.progress import SILENT, Progress

WANTED = Manifests("demo", "example.com/demo", "v1.0.0", "h1:none", ("one.yaml", "examples"))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the module cache, whose files cannot be written."""
    module = tmp_path / "module"
    for file in ("one.yaml", "other.yaml", "examples/a/b.yaml", "examples/notes.md"):
        (module / file).parent.mkdir(parents=True, exist_ok=True)
        (module / file).write_text(file)
        (module / file).chmod(0o444)

    async def downloaded(wanted: Manifests, cache: Path, progress: Progress) -> Path:
        return module

    monkeypatch.setattr(manifests, "_download", downloaded)
    return module


def copied(folder: Path) -> dict[str, str]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_text() for each in files}


async def test_wanted_files_and_the_yaml_files_of_wanted_folders_are_copied(
    module: Path, tmp_path: Path
) -> None:
    folder = await manifests.provide(WANTED, cache=tmp_path / "cache", progress=SILENT)
    assert copied(folder) == {"one.yaml": "one.yaml", "examples/a/b.yaml": "examples/a/b.yaml"}


async def test_copying_continues_after_an_interruption(module: Path, tmp_path: Path) -> None:
    folder = await manifests.provide(WANTED, cache=tmp_path / "cache", progress=SILENT)
    complete = copied(folder)
    (folder / "one.yaml").unlink()
    assert copied(await manifests.provide(WANTED, cache=tmp_path / "cache", progress=SILENT)) == (
        complete
    )
    (folder / "examples").rename(folder / "examples.unfinished")
    (folder / "examples.unfinished" / "half").touch()
    assert copied(await manifests.provide(WANTED, cache=tmp_path / "cache", progress=SILENT)) == (
        complete
    )
