"""Explanation: the Trace of `--explain`, with the plugin and field behind each value."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from kftrainer.kube.objects.model import FIELD_NAME
from kftrainer.runtime.planned_object import PlannedObject

# Fields that identify the items of a list, where it is not the name.
_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "volumeDevices": "devicePath"}
# Fields that are maps with arbitrary keys.
_MAPS = frozenset(
    {
        "annotations",
        "binaryData",
        "data",
        "labels",
        "limits",
        "matchLabels",
        "minResources",
        "nodeSelector",
        "overhead",
        "requests",
        "stringData",
    }
)
# Fields that every object has and that no plugin chooses.
_HEAD = ("apiVersion", "kind")
_IDENTITY = ("name", "namespace", "ownerReferences")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a plugin has set; in a JobSet, one that differs from the template."""

    path: str
    value: Any
    plugin: str
    source: str | None  # the field that the value comes from, if the plugin recorded it
    removed: bool = False

    def __str__(self) -> str:
        what = "removed" if self.removed else f"= {orjson.dumps(self.value, default=str).decode()}"
        why = f" ← {self.source}" if self.source else ""
        return f"{self.path} {what}  {self.plugin}{why}"


class Explanation:
    """Trace of one TrainJob that compares the JobSet before and after each plugin."""

    def __init__(self) -> None:
        self._jobset: Mapping[str, Any] = {}
        self._leaves: dict[str, Any] = {}
        self._notes: dict[str, str] = {}
        self._settings: dict[str, Setting] = {}
        self._plugin = ""
        self._builders: list[tuple[PlannedObject, str]] = []

    def start(self, jobset: Mapping[str, Any]) -> None:
        """Record the JobSet before any plugin has changed it."""
        self._jobset = jobset
        self._leaves = dict(leaves(jobset))

    @contextmanager
    def changes_of(self, plugin: str) -> Iterator[None]:
        """Attribute every change in this context to the plugin."""
        self._plugin = plugin
        self._notes = {}
        yield
        now = dict(leaves(self._jobset))
        self._compare(self._leaves, now)
        self._leaves = now
        self._attribute_noted_values()

    def note(self, path: str, source: str) -> None:
        """Record that the latest change at this path comes from this field."""
        self._notes[path] = source
        # A list item or map key is set once per plugin, so it is compared when the plugin ends. A
        # TrainJob may have a thousand variables.
        if not path.endswith("]"):
            self._record_changes_at(path)

    def built(self, planned: Sequence[PlannedObject]) -> None:
        """Record which plugin has built these objects."""
        self._builders += [(each, self._plugin) for each in planned]

    def settings(self) -> list[Setting]:
        """Return the values set in the JobSet, in its order, then those that were removed."""
        present = [self._settings[path] for path in self._leaves if path in self._settings]
        return present + [each for each in self._settings.values() if each.removed]

    def settings_of(self, planned: PlannedObject, manifest: Mapping[str, Any]) -> list[Setting]:
        """Return all values of an object other than the JobSet, as `manifest` has them."""
        plugin = self.builder_of(planned)
        metadata = {k: v for k, v in manifest["metadata"].items() if k not in _IDENTITY}
        body = {k: v for k, v in manifest.items() if k not in _HEAD} | {"metadata": metadata}
        if not metadata:
            del body["metadata"]
        return [
            Setting(path, value, plugin, _source(path, planned.sources))
            for path, value in (leaves(body) if body else ())
        ]

    def builder_of(self, planned: PlannedObject) -> str:
        """Return the plugin that built this object."""
        return next(plugin for each, plugin in self._builders if each is planned)

    def _record_changes_at(self, where: str) -> None:
        """Record changes at this path; removed values are recorded when the plugin ends."""
        found = _at(self._jobset, where)
        if found is _NOTHING:
            return
        now = dict(leaves(found, where))
        inside = (where,) if where in self._leaves else tuple(self._leaves)
        before = {path: self._leaves.pop(path) for path in inside if _within(path, where)}
        self._compare(before, now)
        self._leaves |= now

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Record the differences."""
        for path, value in now.items():
            if path not in before or not _same(before[path], value):
                self._set(path, value)
        missing = [path for path in before if path not in now]
        parents = {ancestor for path in now for ancestor in _ancestors(path)} if missing else set()
        for path in missing:
            # A path whose parent or child exists now was restructured, not removed.
            if path not in parents and not any(ancestor in now for ancestor in _ancestors(path)):
                self._set(path, None, removed=True)

    def _attribute_noted_values(self) -> None:
        """Attribute noted values to the current plugin, even if they did not change."""
        for path, value in self._leaves.items() if self._notes else ():
            note = _nearest(path, self._notes)
            if note is not None and (note == path or note.endswith("]")):
                self._set(path, value)

    def _set(self, path: str, value: Any, *, removed: bool = False) -> None:
        source = _source(path, self._notes)
        self._settings[path] = Setting(path, value, self._plugin, source, removed=removed)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a document with their paths, which identify list items by name."""
    if isinstance(value, Mapping) and value:
        for field, each in value.items():
            yield from leaves(each, _below(path, field))
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for where, each, key in _items(value, path):
            yield from leaves(each, where) if key is None else _named_item(each, key, where)
    else:
        yield path, list(value) if isinstance(value, list) else value


def _items(items: list[Any], path: str) -> Iterator[tuple[str, Any, str | None]]:
    """Yield each item, its path and the field that identifies it; None if it has an index."""
    key: str | None = _KEYS.get(path.rpartition(".")[2], "name")
    names: Sequence[Any] = [each.get(key) if isinstance(each, Mapping) else None for each in items]
    if None in names or len(set(map(str, names))) < len(names):
        key, names = None, range(len(items))
    for name, each in zip(names, items, strict=True):
        yield f"{path}[{name}]", each, key


def _named_item(item: Mapping[str, Any], key: str, path: str) -> Iterator[tuple[str, Any]]:
    rest = {field: value for field, value in item.items() if field != key}
    if not rest:
        yield path, item
    elif list(rest) == ["value"]:  # a variable with a plain value
        yield path, rest["value"]
    else:
        yield from leaves(rest, path)


def _below(path: str, field: str) -> str:
    if path.rpartition(".")[2] in _MAPS or not FIELD_NAME.fullmatch(field):
        return f"{path}[{field}]"
    return f"{path}.{field}" if path else field


_NOTHING = object()


def _at(document: Any, where: str) -> Any:
    """Return the value at this path."""
    path, value = "", document
    while path != where:
        inner = (each for each in _children(value, path) if _within(where, each[0]))
        path, value = next(inner, (where, _NOTHING))
    return value


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((_below(path, field), each) for field, each in value.items())
    elif isinstance(value, list):
        yield from ((where, each) for where, each, _ in _items(value, path))


def _source(path: str, sources: Mapping[str, str]) -> str | None:
    nearest = _nearest(path, sources)
    return None if nearest is None else sources[nearest]


def _nearest(path: str, known: Mapping[str, str]) -> str | None:
    """Return the longest known path that contains this one, or None."""
    return next((ancestor for ancestor in _ancestors(path) if ancestor in known), None)


def _ancestors(path: str) -> Iterator[str]:
    """Yield the path and its parents, up to the root."""
    yield path
    while path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
        yield path


def _within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _same(one: object, other: object) -> bool:
    return one == other and type(one) is type(other)  # in Python, 1 == True
