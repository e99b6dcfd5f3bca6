"""More processes on a node than it has devices: it can be meant, but mostly is not."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.runtime.devices import accelerators


def crowding(processes: int | str, source: str, resources: Mapping[str, Any]) -> Iterator[str]:
    """What to tell if processes of a node will have to share its devices; `source` says so many."""
    devices = accelerators(resources)
    if isinstance(processes, int) and processes > devices > 0:
        noun = "accelerator" if devices == 1 else "accelerators"
        yield (
            f"{source}: {processes} processes on each node share {devices} {noun}: "
            f"run {devices}, or ask for more in spec.trainer.resourcesPerNode"
        )
