"""docs/admission.md lists the rules that are tested, all of them, in the words that are told."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kftrainer.cli.commands import crds
from tests.integration.webhooks.cases import REFERENCE, RUNTIME
from tests.integration.webhooks.runtime_cases import RUNTIME_CASES
from tests.integration.webhooks.test_changes import AFTER_END, CHANGE_RULES, METADATA_LATER
from tests.integration.webhooks.test_lifecycle import KNOWN_BEFORE, NO_INITIALIZER
from tests.integration.webhooks.test_operations import NO_STRING, PLUGIN_DISABLED
from tests.integration.webhooks.trainjob_cases import JOB_CASES

DOCUMENT = Path(__file__).parents[3] / "docs" / "admission.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| .* \| `([^`]+)` \|$", re.MULTILINE)
REFERRED = re.compile(r'\{"name":"[^"]*","apiGroup":"[^"]*","kind":"[^"]*"\}')
FIELDS = {
    "change": "spec.trainer.image",
    "override": "spec.podTemplateOverrides",
    "patch": "spec.runtimePatches",
}


def shown(says: str) -> str:
    """What is told, as the document shows it."""
    said = REFERRED.sub("{…}", says.replace(REFERENCE, "{…}"))
    return said.replace(RUNTIME, "torch").replace("<kind>", "TrainingRuntime")


# The rules that are not in the tables of cases.
SAYS = {
    **{
        rule: f"{FIELDS[rule.partition('-')[0]]}: {says.format('node')}"
        for rule, says in CHANGE_RULES.items()
    },
    "known-before": shown(KNOWN_BEFORE + NO_INITIALIZER),
    "metadata-while-running": f"spec.labels: {METADATA_LATER.format('labels')}",
    "ignored-after-end": f"spec.labels: {AFTER_END}",
    "plugin-off": shown(PLUGIN_DISABLED.format("default")),
    "processes-not-integer": NO_STRING,
}


def test_every_rule_is_documented_with_its_message() -> None:
    told: dict[str, set[str]] = {rule: {says} for rule, says in SAYS.items()}
    for case in (*JOB_CASES, *RUNTIME_CASES):
        told.setdefault(case.rule, set()).add(shown(case.says))
    listed = ROW.findall(DOCUMENT.read_text())
    assert sorted(rule for rule, _ in listed) == sorted(told)
    assert [(rule, says) for rule, says in listed if says not in told[rule]] == []


def test_every_rule_of_the_api_server_is_listed() -> None:
    messages = {
        rule["message"]
        for document in crds.documents()
        for rule in rules_in(yaml.safe_load(document))
    }
    text = DOCUMENT.read_text()
    assert [message for message in messages if f"`{message}`" not in text] == []


def rules_in(schema: Any) -> Iterator[Any]:
    """The rules in CEL, wherever they are."""
    if isinstance(schema, list):
        for each in schema:
            yield from rules_in(each)
    elif isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        yield from rules_in(list(schema.values()))
