"""Named control planes that stay up: their folder, lock and recorded state."""

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.processes.locks import FileLock, holder

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Part:
    """A process in the state file."""

    name: str
    pid: int
    log: str


@dataclass(frozen=True, slots=True)
class State:
    """The state that a control plane's supervisor wrote last."""

    phase: Phase
    url: str = ""
    kubeconfig: str = ""
    reason: str = ""
    parts: tuple[Part, ...] = ()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Parse the output of `asdict`."""
        return cls(**{**document, "parts": tuple(Part(**part) for part in document["parts"])})


class NamedPlane:
    """The folder of one named control plane; the process that holds its lock is its supervisor."""

    def __init__(self, name: str, cache: Path) -> None:
        if NAME.fullmatch(name) is None:
            raise DevClusterError(
                f"{name!r} cannot be the name of a control plane: "
                f"use up to 32 lower-case letters, digits and dashes."
            )
        self.name = name
        self.folder = cache_paths.named(cache) / name
        self.lock = FileLock(cache_paths.named(cache) / f"{name}.lock")
        self._state = self.folder / "state.json"

    def supervisor(self) -> int | None:
        """Return the pid of the supervisor; the state file alone may be stale."""
        return holder(self.lock.path)

    def kept(self) -> bool:
        """Return whether the supervisor is running."""
        return self.supervisor() is not None

    def read(self) -> State | None:
        """Return the last recorded state; None if it is missing or invalid."""
        try:
            return State.from_json(json.loads(self._state.read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, state: State) -> None:
        """Record the state; only for the supervisor."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._state.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(state), indent=2))
        os.replace(unfinished, self._state)

    def logs(self) -> dict[str, Path]:
        """Return the existing logs by process name."""
        return {path.stem: path for path in sorted((self.folder / "logs").glob("*.log"))}
