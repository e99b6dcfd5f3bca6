"""CEL rules of a CRD's schema, evaluated by a Python function for each rule."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kftrainer.kube.objects.field_errors import ErrorType, FieldError
from kftrainer.kube.schema.defaulting import Schema, schema_of_field
from kftrainer.kube.schema.structure import below

Rule = Callable[[Any, Any], bool]  # of self and oldSelf; a LookupError means a missing field
# With any of these errors the API server does not evaluate the rules.
BLOCKING = frozenset(
    {
        ErrorType.TYPE_INVALID,
        ErrorType.REQUIRED,
        ErrorType.NOT_SUPPORTED,
        ErrorType.TOO_LONG,
        ErrorType.TOO_MANY,
    }
)


def rule_errors(
    value: Any, schema: Schema | None, rules: Mapping[str, Rule], path: str = "", old: Any = None
) -> Iterator[FieldError]:
    """Yield the violated rules; transition rules are skipped without an old value.

    `rules` maps the text of each rule to its function. Transition rules on list items are always
    skipped.
    """
    if schema is None or value is None:
        return
    for rule in schema.get("x-kubernetes-validations") or ():
        if old is not None or "oldSelf" not in rule["rule"]:
            yield from _broken(value, rule, rules[rule["rule"]], path, old)
    if isinstance(value, Mapping):
        for field, each in value.items():
            before = old.get(field) if isinstance(old, Mapping) else None
            inner = schema_of_field(schema, field)
            yield from rule_errors(each, inner, rules, below(path, field), before)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from rule_errors(item, schema.get("items"), rules, f"{path}[{index}]")


def _broken(
    value: Any, rule: Mapping[str, Any], holds: Rule, path: str, old: Any
) -> Iterator[FieldError]:
    # messageExpression is not evaluated; the API server also falls back to the message.
    message = rule.get("message") or f"failed rule: {rule['rule']}"
    try:
        if holds(value, old):
            return
    except LookupError as error:  # "no such key" in CEL
        message = f"{error.args[0]} is missing, so the rule cannot be evaluated: {message}"
    where = f"{path}{rule.get('fieldPath', '')}".removeprefix(".")
    yield FieldError(where, ErrorType(rule.get("reason", ErrorType.INVALID)), message, value)
