"""Each error of admission names its rule, and the document lists every rule."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kftrainer.machinery.webhook.handler import OWN_RULES
from kftrainer.runtime.plugins import PLUGIN_RULES
from kftrainer.runtime.validation.rules import Rule

RULES = (*Rule, *PLUGIN_RULES)
ROOT = Path(__file__).parents[4]
SOURCES = ROOT / "src" / "kftrainer"
DOCUMENT = ROOT / "docs" / "admission.md"
CONSTRUCTORS = ("invalid", "required", "forbidden", "FieldError", "refused")
NAMED = re.compile(r"^\| `([a-z_-]+)` \| (?!.*\*warning:\*)", re.MULTILINE)
WARNED = "Warnings (the object is stored):\n\n"  # before a table of rules that only warn
FILES = sorted(
    file for folder in ("runtime", "webhooks") for file in (SOURCES / folder).rglob("*.py")
)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Where an error is made."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in CONSTRUCTORS:
                yield node


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCES)))
def test_every_error_names_its_rule(file: Path) -> None:
    tree = ast.parse(file.read_text())
    nameless = [
        call.lineno
        for call in calls(tree)
        if not any(keyword.arg == "rule" for keyword in call.keywords)
    ]
    assert nameless == []


def test_every_rule_is_used() -> None:
    text = "\n".join(file.read_text() for file in FILES if file.name != "rules.py")
    assert [rule for rule in RULES if f"Rule.{rule.name}" not in text] == []


def test_rule_values_match_their_names() -> None:
    assert [rule for rule in RULES if rule.name.lower().replace("_", "-") != rule.value] == []


def listed() -> set[str]:
    """The rules in the document that refuse something."""
    before, *tables = DOCUMENT.read_text().split("| rule |")
    refusing = []
    for table in tables:
        if not before.endswith(WARNED):
            refusing.append(table.partition("\n\n")[0])
        before = table
    return {name for table in refusing for name in NAMED.findall(table)}


def test_admission_document_lists_exactly_the_rules() -> None:
    assert listed() == {*map(str, RULES), *OWN_RULES}
