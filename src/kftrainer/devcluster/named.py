"""Control planes that stay up by a name: where they lie, and what is known of them."""

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from kftrainer.devcluster import places
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.processes.locks import FileLock, holder

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Part:
    """A process as the state file knows it."""

    name: str
    pid: int
    log: str


@dataclass(frozen=True, slots=True)
class State:
    """What a control plane's keeper wrote down last."""

    phase: Phase
    url: str = ""
    kubeconfig: str = ""
    reason: str = ""
    parts: tuple[Part, ...] = ()

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Self:
        """Read back what `asdict` gave."""
        return cls(**{**told, "parts": tuple(Part(**part) for part in told["parts"])})


class NamedPlane:
    """The place of one named control plane; whoever holds its lock is its keeper."""

    def __init__(self, name: str, cache: Path) -> None:
        if NAME.fullmatch(name) is None:
            raise DevClusterError(
                f"{name!r} cannot be the name of a control plane: "
                f"use up to 32 lower-case letters, digits and dashes."
            )
        self.name = name
        self.folder = places.named(cache) / name
        self.lock = FileLock(places.named(cache) / f"{name}.lock")
        self._state = self.folder / "state.json"

    def keeper(self) -> int | None:
        """The process that keeps it; a state file alone says nothing, it may be stale."""
        return holder(self.lock.path)

    def kept(self) -> bool:
        """Whether its keeper lives."""
        return self.keeper() is not None

    def read(self) -> State | None:
        """What was written down last, if anything readable was."""
        try:
            return State.from_json(json.loads(self._state.read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, state: State) -> None:
        """Write the state down; for the keeper alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._state.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(state), indent=2))
        os.replace(unfinished, self._state)

    def logs(self) -> dict[str, Path]:
        """The log of every part that has one."""
        return {path.stem: path for path in sorted((self.folder / "logs").glob("*.log"))}
