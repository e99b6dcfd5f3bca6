"""Which components of a cluster to start."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.artifacts.versions import Binary, Manifests

NODE_CAPACITY: Mapping[str, str] = {
    "cpu": "32",
    "memory": "256Gi",
    "ephemeral-storage": "1Ti",
    "pods": "110",
    "nvidia.com/gpu": "8",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The components of a control plane. etcd and the API server are always included."""

    controllers: bool = False  # kube-controller-manager and kube-scheduler
    jobset: bool = False  # the JobSet controller and its webhooks
    nodes: int = 0  # fake nodes, kept alive by kwok
    node_capacity: Mapping[str, str] = field(default_factory=lambda: NODE_CAPACITY)
    pod_seconds: float = 1.0  # how long a Job's pods run on the fake nodes
    process_nodes: int = 0  # nodes whose pods are processes on this machine
    process_node_resources: Mapping[str, str] = field(default_factory=dict)  # added to each
    images: Mapping[str, Path] = field(default_factory=dict)  # virtual environments by image name
    only_mapped_images: bool = False  # other image names are errors
    crash_backoff: float = 10.0  # seconds before the second restart of a container, then doubled
    port: int | None = None  # of the API server; None selects a free one
    audit: bool = False  # enables the audit log of the API server
    service_proxy: bool = False  # the API server calls Services through a socket
    admission_config: Path | None = None  # file for --admission-control-config-file
    crds: tuple[Manifests, ...] = ()  # CRDs of other projects to install
    crd_files: tuple[Path, ...] = ()  # CRDs to install from files

    def binaries(self) -> tuple[Binary, ...]:
        """Return the programs that this shape needs."""
        wanted = [versions.ETCD, versions.APISERVER]
        if self.controllers:
            wanted += [versions.CONTROLLER_MANAGER, versions.SCHEDULER]
        if self.jobset:
            wanted.append(versions.JOBSET)
        if self.nodes:
            wanted.append(versions.KWOK)
        return tuple(wanted)

    def manifests(self) -> tuple[Manifests, ...]:
        """Return the manifests that this shape needs."""
        wanted = list(self.crds)
        if self.jobset:
            wanted.append(versions.JOBSET_MANIFESTS)
        if self.nodes:
            wanted.append(versions.KWOK_MANIFESTS)
        return tuple(dict.fromkeys(wanted))

    def to_json(self) -> dict[str, Any]:
        """Serialize the shape for another process."""
        return {
            **asdict(self),
            "node_capacity": dict(self.node_capacity),
            "process_node_resources": dict(self.process_node_resources),
            "images": {name: str(folder.absolute()) for name, folder in self.images.items()},
            "admission_config": _text_of(self.admission_config),
            "crds": [source.name for source in self.crds],
            "crd_files": [str(file.absolute()) for file in self.crd_files],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Deserialize a shape from another process."""
        known = {source.name: source for source in versions.MANIFESTS}
        return cls(
            **{
                **document,
                "images": {name: Path(folder) for name, folder in document["images"].items()},
                "admission_config": _path_of(document["admission_config"]),
                "crds": tuple(known[name] for name in document["crds"]),
                "crd_files": tuple(Path(file) for file in document["crd_files"]),
            }
        )


def _text_of(file: Path | None) -> str | None:
    return None if file is None else str(file.absolute())


def _path_of(text: str | None) -> Path | None:
    return None if text is None else Path(text)


BARE = Shape()
FULL = Shape(controllers=True, jobset=True, nodes=4)
PROCESSES = Shape(controllers=True, jobset=True, process_nodes=2, crash_backoff=1.0)
