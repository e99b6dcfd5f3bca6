"""Reads objects from files, folders and standard input, each with its position.

YAML is read as kubectl reads it, except that duplicate keys are errors.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kftrainer.cli.manifests.parsing import Markup, MarkupError, parse
from kftrainer.cli.manifests.positions import Spot

STDIN = "-"
NO_ITEMS = "must be a list"
SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Place:
    """The file and line of something that was read."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Document:
    """An object and where it was read."""

    place: Place
    content: Mapping[str, Any]
    spot: Spot | None = None  # positions of its fields, if requested


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read, and the reason."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(slots=True)
class Reading:
    """All objects that could be read, and everything that could not."""

    documents: list[Document] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    with_spots: bool = False

    @property
    def problems(self) -> list[str]:
        """One line for each thing that could not be read."""
        return [*map(str, self.unread)]

    def miss(self, place: Place, message: str) -> None:
        """Record something that could not be read."""
        self.unread.append(Unread(place, message))


def read(
    sources: Iterable[str], *, with_spots: bool = False, empty_is_unread: bool = False
) -> Reading:
    """Read files, folders with everything below them, and `-` for standard input.

    An empty source is an error only with `empty_is_unread`.
    """
    reading = Reading(with_spots=with_spots)
    for source in sources:
        before = len(reading.documents), len(reading.unread)
        try:
            for file in _files(source):
                _read_file(file, reading)
        except OSError as error:
            reading.miss(Place(str(error.filename or source)), _in_words(error))
        if empty_is_unread and before == (len(reading.documents), len(reading.unread)):
            reading.miss(Place(_name(source)), "there is no object in it")
    return reading


def _files(source: str) -> list[str]:
    """Return the files to read; hidden files in folders are ignored."""
    folder = Path(source)
    if source == STDIN or not folder.is_dir():
        return [source]
    found = sorted(path for path in _walked(folder) if path.suffix in SUFFIXES)
    if not found:
        raise FileNotFoundError(0, f"there is no {', '.join(SUFFIXES)} file in it", source)
    return [str(path) for path in found]


def _walked(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walked(path)
        elif path.is_file():
            yield path


def _read_file(file: str, reading: Reading) -> None:
    name = _name(file)
    data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        reading.miss(Place(name), "it is not UTF-8 text")
        return
    only_json = file.endswith(".json")
    try:
        for markup in parse(text, only_json=only_json, with_spots=reading.with_spots):
            _take(markup, name, reading)
    except MarkupError as error:
        reading.miss(Place(name, error.line), str(error))


def _name(source: str) -> str:
    return "<stdin>" if source == STDIN else source


def _take(markup: Markup, file: str, reading: Reading) -> None:
    place, content = Place(file, markup.line), markup.value
    if content is None:
        return
    if not isinstance(content, Mapping):
        reading.miss(place, "it must be an object")
    elif content.get("kind") == "List" and not isinstance(content.get("items"), list):
        reading.miss(place, f"items: {NO_ITEMS}")
    elif _is_list(content):
        for index, item in enumerate(content["items"]):
            spot = markup.spot and markup.spot.nearest(f"items[{index}]")
            line = markup.item_lines[index] if markup.item_lines else markup.line
            inner = {**_head_of_items(content), **item} if isinstance(item, Mapping) else item
            _take(Markup(inner, spot.line if spot else line, spot=spot), file, reading)
    else:
        reading.documents.append(Document(place, content, markup.spot))


def _is_list(content: Mapping[str, Any]) -> bool:
    kind = content.get("kind")
    return (
        isinstance(kind, str) and kind.endswith("List") and isinstance(content.get("items"), list)
    )


def _head_of_items(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the apiVersion and kind that items of a typed list may omit."""
    kind = content["kind"].removesuffix("List")
    return {"apiVersion": content.get("apiVersion"), "kind": kind} if kind else {}


def _in_words(error: OSError) -> str:
    return (error.strerror or str(error)).lower().removesuffix(".")
