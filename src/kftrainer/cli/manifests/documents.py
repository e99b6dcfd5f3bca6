"""Reads objects from files, folders and standard input, each with its position.

Hidden files in folders are ignored.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kftrainer.kube.parsing import ParseError, parse
from kftrainer.kube.positions import Position

STDIN = "-"
NO_ITEMS = "must be a list"
NOT_AN_OBJECT = "not an object: expected a mapping with apiVersion and kind"
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
    position: Position | None = None  # None if it was not read from text


@dataclass(frozen=True, slots=True)
class ReadError:
    """Something that could not be read, and the reason."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(slots=True)
class Documents:
    """All objects that could be read, and an error for everything that could not."""

    documents: list[Document] = field(default_factory=list)
    errors: list[ReadError] = field(default_factory=list)


def read(sources: Iterable[str], *, require_objects: bool = False) -> Documents:
    """Read files, folders with everything below them, and `-` for standard input.

    A source without objects is an error only with `require_objects`.
    """
    result = Documents()
    for source in sources:
        before = len(result.documents), len(result.errors)
        try:
            for file in _files(source):
                _read_file(file, result)
        except OSError as error:
            result.errors.append(ReadError(Place(str(error.filename or source)), _reason(error)))
        if require_objects and before == (len(result.documents), len(result.errors)):
            result.errors.append(ReadError(Place(_name(source)), "contains no objects"))
    return result


def _files(source: str) -> list[str]:
    """Return the files to read."""
    folder = Path(source)
    if source == STDIN or not folder.is_dir():
        return [source]
    found = sorted(path for path in _walked(folder) if path.suffix in SUFFIXES)
    if not found:
        raise FileNotFoundError(0, "contains no .yaml, .yml or .json file", source)
    return [str(path) for path in found]


def _walked(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walked(path)
        elif path.is_file():
            yield path


def _read_file(file: str, result: Documents) -> None:
    name = _name(file)
    data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        result.errors.append(ReadError(Place(name), "not UTF-8 text"))
        return
    try:
        for parsed in parse(text, only_json=file.endswith(".json")):
            _add(parsed.value, parsed.position, name, result)
    except ParseError as error:
        result.errors.append(ReadError(Place(name, error.line), str(error)))


def _name(source: str) -> str:
    return "<stdin>" if source == STDIN else source


def _add(content: Any, position: Position, file: str, result: Documents) -> None:
    """Add an object, or the items of a List."""
    place = Place(file, position.line)
    if content is None:
        return
    if not isinstance(content, Mapping):
        result.errors.append(ReadError(place, NOT_AN_OBJECT))
    elif content.get("kind") == "List" and not isinstance(content.get("items"), list):
        result.errors.append(ReadError(place, f"items: {NO_ITEMS}"))
    elif _is_list(content):
        head = _head_of_items(content)
        for index, item in enumerate(content["items"]):
            inner = {**head, **item} if isinstance(item, Mapping) else item
            _add(inner, position.nearest(f"items[{index}]"), file, result)
    else:
        result.documents.append(Document(place, content, position))


def _is_list(content: Mapping[str, Any]) -> bool:
    kind = content.get("kind")
    return (
        isinstance(kind, str) and kind.endswith("List") and isinstance(content.get("items"), list)
    )


def _head_of_items(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the apiVersion and kind that items of a typed list may omit."""
    kind = content["kind"].removesuffix("List")
    return {"apiVersion": content.get("apiVersion"), "kind": kind} if kind else {}


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower().removesuffix(".")
