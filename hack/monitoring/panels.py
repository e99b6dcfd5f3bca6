"""What the panels of a dashboard ask, with its variables filled in."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a panel."""

    panel: str
    expr: str
    legend: str


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """The text with values in place of all variables; KeyError names one that has none."""
    return VARIABLE.sub(lambda found: values[found[1] or found[2]], text)


def variables_in(text: str) -> set[str]:
    """The variables that a text mentions."""
    return {short or long for short, long in VARIABLE.findall(text)}


def asked_by(panel: Json, values: Mapping[str, str]) -> Iterator[Asked]:
    """The queries of one panel."""
    for target in panel.get("targets", ()):
        expr = filled_in(target["expr"], values)
        yield Asked(panel["title"], expr, target["legendFormat"])


def named(legend: str, labels: Mapping[str, str]) -> str:
    """What Grafana calls a series."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)
