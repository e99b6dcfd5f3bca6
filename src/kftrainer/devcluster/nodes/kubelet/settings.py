"""The settings of the kubelet, passed from the control plane as a JSON file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

USER = "system:kftrainer:kubelet"
NODE_PREFIX = "process-"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the API server is, which nodes there are and what they have."""

    url: str
    authority: str  # files with certificates and keys
    certificate: str
    key: str
    serving_certificate: str
    serving_key: str
    folder: str  # of the pods' files
    apiserver_port: int
    ports: tuple[int, ...]  # of the kubelet API, one for each node
    resources: Mapping[str, str] = field(default_factory=dict)  # of each node
    images: Mapping[str, str] = field(default_factory=dict)  # folders by image name
    only_mapped_images: bool = False
    crash_backoff: float = 10.0  # seconds before the second restart of a container

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(f"{NODE_PREFIX}{number}" for number in range(len(self.ports)))

    def write(self, file: Path) -> None:
        """Write the settings to a file."""
        file.write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the settings from a file."""
        found = json.loads(file.read_text())
        return cls(**{**found, "ports": tuple(found["ports"])})
