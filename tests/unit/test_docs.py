"""Links in documents have valid targets."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import doc_snippets

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    ROOT / "charts" / "kftrainer" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SAMPLE = re.compile(r"```.*?```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors_in(text: str) -> set[str]:
    """The names that headings get where Markdown is shown."""
    headings = (re.sub(r"[`*_]", "", found).lower() for found in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> Iterator[str]:
    for link in LINK.findall(SAMPLE.sub("", document.read_text())):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors_in(target.read_text())):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: str(each.relative_to(ROOT)))
def test_links_are_not_broken(document: Path) -> None:
    assert list(broken_links(document)) == []


@pytest.mark.parametrize("document", ["plugins.md", "devcluster.md"])
def test_python_snippets_are_whole_files_so_that_tests_can_run_them(document: str) -> None:
    shown = doc_snippets.snippets(document, "python")
    assert shown
    assert [text for text in shown if text not in doc_snippets.files(document).values()] == []


def test_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# Some `words`\n[good](#some-words) [bad](#others) [gone](b.md)\n")
    assert list(broken_links(document)) == ["#others", "b.md"]
