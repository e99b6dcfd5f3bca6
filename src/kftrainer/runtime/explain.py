"""Which plugin set what in a JobSet, and from which field: a tape that keeps everything."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from kftrainer.kube.model import FIELD_NAME
from kftrainer.runtime.planned import Planned

# What tells the items of a list apart, if it is not their name.
_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "volumeDevices": "devicePath"}
_MAPS = ("labels", "annotations")  # whose keys are no fields, even where they look like some


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of the JobSet that is not as the runtime's template has it, and why."""

    path: str
    value: Any
    plugin: str
    source: str | None  # the field that it comes from, where the plugin has said so
    removed: bool = False

    def __str__(self) -> str:
        what = "removed" if self.removed else f"= {orjson.dumps(self.value, default=str).decode()}"
        why = f" ← {self.source}" if self.source else ""
        return f"{self.path} {what}  {self.plugin}{why}"


class Explanation:
    """A tape for one TrainJob: compares the JobSet before and after each plugin's turn."""

    def __init__(self) -> None:
        self._jobset: Mapping[str, Any] = {}
        self._leaves: dict[str, Any] = {}
        self._notes: dict[str, str] = {}
        self._settings: dict[str, Setting] = {}
        self._plugin = ""
        self._makers: list[tuple[Planned, str]] = []

    def attend(self, jobset: Mapping[str, Any]) -> None:
        """Look at the JobSet as the runtime's template has it."""
        self._jobset = jobset
        self._leaves = dict(leaves(jobset))

    @contextmanager
    def turn(self, plugin: str) -> Iterator[None]:
        """Whatever is changed in this block was done by this plugin."""
        self._plugin = plugin
        self._notes = {}
        yield
        self._compare("")

    def note(self, path: str, source: str) -> None:
        """Whatever has been changed at this path since the last look comes from this field."""
        self._notes[path] = source
        self._compare(path)

    def made(self, planned: Sequence[Planned]) -> None:
        """Keep who made these."""
        self._makers += [(each, self._plugin) for each in planned]

    def settings(self) -> list[Setting]:
        """What was set, in the order of the document; what was removed, at the end."""
        there = [self._settings[path] for path in self._leaves if path in self._settings]
        return there + [each for each in self._settings.values() if each.removed]

    def maker(self, planned: Planned) -> str:
        """The plugin that made this very object."""
        return next(plugin for each, plugin in self._makers if each is planned)

    def _compare(self, where: str) -> None:
        """Look at what is at this path now, and keep what is not as it was."""
        now, before = dict(leaves(self._jobset)), self._leaves
        seen = {path: value for path, value in now.items() if _within(path, where)}
        for path, value in seen.items():
            if path not in before or not _same(before[path], value):
                self._set(path, value)
            elif path == where or where.endswith("]"):  # a value, or a piece that is set as one
                self._set_again(path, value)
        for path in before:
            if _within(path, where) and not any(_related(path, there) for there in now):
                self._set(path, None, removed=True)
        unseen = {path: value for path, value in before.items() if not _within(path, where)}
        self._leaves = unseen | seen

    def _set(self, path: str, value: Any, *, removed: bool = False) -> None:
        source = self._source(path)
        self._settings[path] = Setting(path, value, self._plugin, source, removed=removed)

    def _set_again(self, path: str, value: Any) -> None:
        """A value that was there already has another reason now, unless it is the same one."""
        there = self._settings.get(path)
        if there is None or there.source != self._source(path):
            self._set(path, value)

    def _source(self, path: str) -> str | None:
        """The source of the longest path with a note that has this one in it."""
        found = [note for note in self._notes if _within(path, note)]
        return self._notes[max(found, key=len)] if found else None


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a document and their paths, with names for the items of lists."""
    if isinstance(value, Mapping) and value:
        for field, each in value.items():
            yield from leaves(each, _below(path, field))
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        yield from _items(value, path)
    else:
        yield path, list(value) if isinstance(value, list) else value


def _items(items: list[Any], path: str) -> Iterator[tuple[str, Any]]:
    key = _KEYS.get(path.rpartition(".")[2], "name")
    names = [each.get(key) if isinstance(each, Mapping) else None for each in items]
    if None in names or len(set(map(str, names))) < len(names):
        for index, each in enumerate(items):
            yield from leaves(each, f"{path}[{index}]")
        return
    for name, each in zip(names, items, strict=True):
        yield from _named_item({k: v for k, v in each.items() if k != key}, each, f"{path}[{name}]")


def _named_item(
    rest: Mapping[str, Any], item: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any]]:
    if not rest:
        yield path, item
    elif list(rest) == ["value"]:  # a variable, about which there is no more to say
        yield path, rest["value"]
    else:
        yield from leaves(rest, path)


def _below(path: str, field: str) -> str:
    if path.rpartition(".")[2] in _MAPS or not FIELD_NAME.fullmatch(field):
        return f"{path}[{field}]"
    return f"{path}.{field}" if path else field


def _within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _related(path: str, other: str) -> bool:
    return _within(path, other) or _within(other, path)


def _same(one: object, other: object) -> bool:
    return one == other and type(one) is type(other)  # 1 is not true
