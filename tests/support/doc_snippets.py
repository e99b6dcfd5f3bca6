"""Extracts files from the documentation: a name in backticks, then its text."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^`([\w.-]+)`[^`\n]*[:.]\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets(document: str, language: str) -> list[str]:
    """All snippets of a document in this language."""
    found = _FENCED.findall((DOCS / document).read_text())
    return [text for each, text in found if each == language]


def files(document: str) -> dict[str, str]:
    """The files that a document shows, by name."""
    return dict(_FILE.findall((DOCS / document).read_text()))


def write(document: str, folder: Path) -> None:
    """Write the files that a document shows into a folder."""
    for name, text in files(document).items():
        (folder / name).write_text(text)
