"""Objects from files, folders and standard input, each with the place that it was read from.

YAML is read as kubectl reads it, but for one thing: a key that is said twice is an error.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kftrainer.cli.markup import Markup, MarkupError, parse

STDIN = "-"
NO_ITEMS = "must be a list"
SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was read."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Document:
    """An object, and where it was read."""

    place: Place
    content: Mapping[str, Any]


@dataclass(slots=True)
class Reading:
    """All objects that could be read, and a line about everything that could not."""

    documents: list[Document] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read(sources: Iterable[str]) -> Reading:
    """Read files, folders with all that is below them, and `-` for standard input."""
    reading = Reading()
    for source in sources:
        try:
            for file in _files(source):
                _read_file(file, reading)
        except OSError as error:
            reading.problems.append(f"{error.filename or source}: {_in_words(error)}")
    return reading


def _files(source: str) -> list[str]:
    """The files to read; what is hidden in folders stays so."""
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
    name = "<stdin>" if file == STDIN else file
    data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        reading.problems.append(f"{name}: it is not UTF-8 text")
        return
    try:
        for markup in parse(text, only_json=file.endswith(".json")):
            _take(markup, name, reading)
    except MarkupError as error:
        reading.problems.append(f"{Place(name, error.line)}: {error}")


def _take(markup: Markup, file: str, reading: Reading) -> None:
    place, content = Place(file, markup.line), markup.value
    if content is None:
        return
    if not isinstance(content, Mapping):
        reading.problems.append(f"{place}: it must be an object")
    elif content.get("kind") == "List" and not isinstance(content.get("items"), list):
        reading.problems.append(f"{place}: items: {NO_ITEMS}")
    elif _is_list(content):
        for index, item in enumerate(content["items"]):
            line = markup.item_lines[index] if markup.item_lines else markup.line
            inner = {**_head_of_items(content), **item} if isinstance(item, Mapping) else item
            _take(Markup(inner, line), file, reading)
    else:
        reading.documents.append(Document(place, content))


def _is_list(content: Mapping[str, Any]) -> bool:
    kind = content.get("kind")
    return (
        isinstance(kind, str) and kind.endswith("List") and isinstance(content.get("items"), list)
    )


def _head_of_items(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the items of a list of one kind need not say themselves."""
    kind = content["kind"].removesuffix("List")
    return {"apiVersion": content.get("apiVersion"), "kind": kind} if kind else {}


def _in_words(error: OSError) -> str:
    return (error.strerror or str(error)).lower().removesuffix(".")
