"""The manifests and examples of Kubeflow Trainer's releases, fetched from its Go modules."""

from collections.abc import Mapping
from pathlib import Path

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import manifests
from kftrainer.devcluster.artifacts.versions import Manifests
from kftrainer.devcluster.progress import SILENT
from tests.support.golden import read
from tests.support.objects import Object

FOLDERS = ("manifests", "examples")
CHECKSUMS = {
    "v2.0.0": "h1:mnQSR9iPKItxyUR8mq66XsmxqKNVHwr9YYOB7BTU9dU=",
    "v2.1.0": "h1:jRABD9ZYToamNH2atHze3L/VC/v6KCAqUEqsOQOjVTg=",
    "v2.2.0": "h1:whChZckEtycLo1UKH/M0hiNaCUozbLvf9JrgmMv+TAg=",
    "v2.3.0": "h1:Je+e7zvTLzB4qW09J1fB7pZrqvPtWuGng2NqdN5p5QU=",
}
RELEASES = {
    version: Manifests(
        "kubeflow-trainer-release", "github.com/kubeflow/trainer/v2", version, checksum, FOLDERS
    )
    for version, checksum in CHECKSUMS.items()
}
KINDS = ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")


async def release(version: str) -> Path:
    """The folder with the YAML files of a release, under their paths in the module."""
    wanted = RELEASES[version]
    return await manifests.provide(wanted, cache=cache_paths.cache_home(), progress=SILENT)


async def training_manifests(version: str) -> Mapping[str, list[Object]]:
    """The TrainJobs and runtimes of a release by the path of their file, without other files."""
    folder = await release(version)
    found = {
        str(file.relative_to(folder)): [each for each in read(file) if _is_ours(each)]
        for file in sorted(folder.rglob("*.yaml"))
    }
    return {path: documents for path, documents in found.items() if documents}


def _is_ours(document: object) -> bool:
    return isinstance(document, dict) and document.get("kind") in KINDS


async def crds(version: str) -> Mapping[str, Object]:
    """The CRDs of a release by kind."""
    folder = (await release(version)) / "manifests" / "base" / "crds"
    found = [each for file in folder.glob("trainer.*.yaml") for each in read(file)]
    return {each["spec"]["names"]["kind"]: each for each in found}
