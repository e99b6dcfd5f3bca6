"""Manifests of other projects, copied from their Go modules into the cache."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts.golang import explain, find_or_install_go, run_command
from kftrainer.devcluster.artifacts.versions import Manifests
from kftrainer.devcluster.errors import DevClusterError, MissingPartError
from kftrainer.devcluster.processes.locks import exclusively
from kftrainer.devcluster.progress import Progress

Document = dict[str, Any]
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the objects in a YAML file, without empty documents."""
    try:
        for document in yaml.load_all(path.read_bytes(), Loader=Loader):
            if document is None:
                continue
            if not _is_object(document):
                raise DevClusterError(
                    f"{path} contains a document that is not a Kubernetes object: "
                    f"each needs apiVersion, kind and metadata.name."
                )
            yield document
    except OSError as error:
        raise DevClusterError(f"{path} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise DevClusterError(f"{path} is not valid YAML: {error}") from None


def _is_object(document: object) -> bool:
    match document:
        case {"apiVersion": str(), "kind": str(), "metadata": {"name": str()}}:
            return True
        case _:
            return False


async def provide(wanted: Manifests, *, cache: Path, progress: Progress) -> Path:
    """Return a folder with the wanted files, under their paths inside the module.

    Of a wanted folder it contains the YAML files.
    """
    folder = cache_paths.manifests(cache) / f"{wanted.name}-{wanted.version}"
    if not _complete(folder, wanted.files):
        lock = cache_paths.manifests(cache) / f"fetching manifests of {wanted.name}.lock"
        async with exclusively(lock, progress):
            with progress.step(f"fetching the manifests of {wanted.name} {wanted.version}"):
                _copy(await _download(wanted, cache, progress), folder, wanted.files)
    return folder


def _complete(folder: Path, files: Iterable[str]) -> bool:
    return all((folder / file).exists() for file in files)


async def _download(wanted: Manifests, cache: Path, progress: Progress) -> Path:
    go = await find_or_install_go(cache, progress)
    module = f"{wanted.module}@{wanted.version}"
    argv: list[str | Path] = [go.executable, "mod", "download", "-json", module]
    code, output, errors = await run_command(argv, cwd=cache, env=go.environment())
    if code != 0:
        raise explain(f"Downloading {module}", output + errors)
    answer = json.loads(output)
    if answer["Sum"] != wanted.checksum:
        raise MissingPartError(
            f"The checksum of the module {module} is {answer['Sum']}, expected "
            f"{wanted.checksum}: the module is not used, because the proxy in GOPROXY serves "
            "different content."
        )
    return Path(answer["Dir"])


def _copy(module: Path, folder: Path, files: Iterable[str]) -> None:
    for file in files:
        target = folder / file
        if target.is_dir():
            continue  # complete: it was renamed after all its files were copied
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"{target.name}.unfinished")
        if (module / file).is_dir():
            _copy_folder(module / file, unfinished)
        else:
            shutil.copyfile(module / file, unfinished)
        os.replace(unfinished, target)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the YAML files below a folder, without the permissions of the module cache."""
    shutil.rmtree(target, ignore_errors=True)  # of an interrupted process
    target.mkdir()
    for file in source.rglob("*.yaml"):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
