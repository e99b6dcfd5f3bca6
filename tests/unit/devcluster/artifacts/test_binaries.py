"""Finding and building, with a stand-in for `go`; the real one builds for the e2e tests."""

import asyncio
from pathlib import Path

import pytest

from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.artifacts.binaries import cached_path, provide
from kftrainer.devcluster.artifacts.versions import APISERVER, ETCD, GIB, KUBECTL
from kftrainer.devcluster.errors import MissingPartError
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until

ANSWERS = """case "$1" in
  version) echo go version go1.26.0 linux/amd64; exit;;
  env) echo /; echo /; exit;;
esac
"""
OUTPUT = 'while [ "$1" != "-o" ]; do shift; done\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `go` on PATH; tests write what its `build` does."""
    path = tmp_path / "bin" / "go"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def write_fake_go(go: Path, build: str) -> None:
    go.write_text(f"#!/bin/sh\n{ANSWERS}{OUTPUT}{build}\n")


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


async def test_assets_have_precedence_over_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(cached_path(cache, ETCD))
    asset = executable(tmp_path / "assets" / "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(asset.parent))
    found = await provide([ETCD], cache=cache, progress=SILENT)
    assert found == {"etcd": asset}


async def test_binaries_missing_from_the_assets_are_copied_from_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = executable(tmp_path / "assets" / "etcd")
    built = executable(cached_path(cache, APISERVER))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(asset.parent))
    found = await provide([ETCD, APISERVER], cache=cache, progress=SILENT)
    assert found == {"etcd": asset, "kube-apiserver": built}


async def test_assets_path_that_is_not_a_folder_is_rejected(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nonesuch")
    with pytest.raises(MissingPartError, match="KUBEBUILDER_ASSETS is set to /nonesuch, which is"):
        await provide([ETCD], cache=cache, progress=SILENT)


@pytest.mark.parametrize(("minor", "taken"), [(32, False), (35, True)])
async def test_kubectl_on_path_is_used_if_it_is_new_enough(
    tmp_path: Path, cache: Path, minor: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = executable(
        tmp_path / "bin" / "kubectl", f"#!/bin/sh\necho 'Client Version: v1.{minor}.4-vendor'\n"
    )
    monkeypatch.setenv("PATH", f"{installed.parent}:/usr/bin:/bin")
    assert await binaries.find(KUBECTL, cache) == (installed if taken else None)


async def test_build_is_cached_and_not_repeated(cache: Path, go: Path) -> None:
    write_fake_go(go, 'echo built > "$2"; echo pkg/one >&2')
    for _ in range(2):
        found = await provide([ETCD], cache=cache, progress=SILENT)
        assert found["etcd"].read_text() == "built\n"
        write_fake_go(go, "exit 1")


async def test_failed_build_reports_its_cause_and_the_next_one_recovers(
    cache: Path, go: Path
) -> None:
    write_fake_go(go, 'echo half > "$2"; echo "write: no space left on device" >&2; exit 1')
    with pytest.raises(MissingPartError, match="because the disk is full: free some space"):
        await provide([ETCD], cache=cache, progress=SILENT)
    assert not cached_path(cache, ETCD).exists()
    write_fake_go(go, 'echo whole > "$2"')
    found = await provide([ETCD], cache=cache, progress=SILENT)
    assert found["etcd"].read_text() == "whole\n"


async def test_interrupted_build_leaves_no_files_that_the_next_build_reuses(
    cache: Path, go: Path, tmp_path: Path
) -> None:
    started_file = tmp_path / "begun"
    write_fake_go(go, f'echo half > "$2"; touch {started_file}; sleep 600')

    async def building() -> bool:
        return started_file.exists()

    async with asyncio.TaskGroup() as group:
        build = group.create_task(provide([ETCD], cache=cache, progress=SILENT))
        await until(building, within=30, what="the build starting")
        build.cancel()
    assert not cached_path(cache, ETCD).exists()
    assert (scratch := list((cache / "build").glob("*.scratch")))
    write_fake_go(go, 'echo whole > "$2"')
    found = await provide([ETCD], cache=cache, progress=SILENT)
    assert found["etcd"].read_text() == "whole\n"
    assert not any(folder.exists() for folder in scratch)


async def test_two_builds_at_once_build_once(cache: Path, go: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    write_fake_go(go, f'echo x >> {count}; echo built > "$2"')
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(provide([ETCD], cache=cache, progress=SILENT))
    assert count.read_text() == "x\n"


async def test_too_little_disk_space_is_reported_before_the_build(
    cache: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    write_fake_go(go, "exit 1")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=GIB // 2))
    with pytest.raises(
        MissingPartError, match=r"Building etcd needs about 5.0 GiB .* 0.5 GiB free"
    ):
        await provide([ETCD], cache=cache, progress=SILENT)
