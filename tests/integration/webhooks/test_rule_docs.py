"""docs/admission.md lists every tested rule with the text of its message."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kftrainer.cli.commands import crds
from tests.integration.webhooks.cases import REFERENCE, RUNTIME
from tests.integration.webhooks.runtime_cases import RUNTIME_CASES
from tests.integration.webhooks.test_changes import AFTER_END, CHANGE_RULES, METADATA_LATER
from tests.integration.webhooks.test_lifecycle import EXISTING_ERROR, NO_INITIALIZER
from tests.integration.webhooks.test_operations import LOST_IN_QUEUE, NO_STRING, PLUGIN_DISABLED
from tests.integration.webhooks.trainjob_cases import JOB_CASES

DOCUMENT = Path(__file__).parents[3] / "docs" / "admission.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| .* \| `([^`]+)` \|$", re.MULTILINE)
REFERRED = re.compile(r'\{"name":"[^"]*","apiGroup":"[^"]*","kind":"[^"]*"\}')
FIELDS = {
    "change": "spec.trainer.image",
    "override": "spec.podTemplateOverrides",
    "patch": "spec.runtimePatches",
}


def shown(template: str) -> str:
    """The message as the document shows it."""
    pattern = REFERRED.sub("{…}", template.replace(REFERENCE, "{…}"))
    return pattern.replace(RUNTIME, "torch").replace("<kind>", "TrainingRuntime")


# The rules that are not in the tables of cases.
MESSAGES = {
    **{
        rule: f"{FIELDS[rule.partition('-')[0]]}: {template.format('node')}"
        for rule, template in CHANGE_RULES.items()
    },
    "known-before": shown(EXISTING_ERROR + NO_INITIALIZER),
    "metadata-while-running": f"spec.labels: {METADATA_LATER.format('labels')}",
    "ignored-after-end": f"spec.labels: {AFTER_END}",
    "plugin-off": shown(PLUGIN_DISABLED.format("default")),
    "processes-not-integer": NO_STRING,
    "fields-lost-in-queue": LOST_IN_QUEUE,
}


def test_every_rule_is_documented_with_its_message() -> None:
    texts: dict[str, set[str]] = {rule: {template} for rule, template in MESSAGES.items()}
    for case in (*JOB_CASES, *RUNTIME_CASES):
        texts.setdefault(case.rule, set()).add(shown(case.message))
    listed = ROW.findall(DOCUMENT.read_text())
    assert sorted(rule for rule, _ in listed) == sorted(texts)
    assert [(rule, template) for rule, template in listed if template not in texts[rule]] == []


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
