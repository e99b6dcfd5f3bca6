"""Queries of the panels of a dashboard, with its variables replaced."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of a panel."""

    panel: str
    expr: str
    legend: str


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """Return the text with all variables replaced; raises KeyError for an unknown variable."""
    return VARIABLE.sub(lambda found: values[found[1] or found[2]], text)


def variables_in(text: str) -> set[str]:
    """Return the variables in a text."""
    return {short or long for short, long in VARIABLE.findall(text)}


def queries_of(panel: Json, values: Mapping[str, str]) -> Iterator[PanelQuery]:
    """Yield the queries of a panel."""
    for target in panel.get("targets", ()):
        expr = filled_in(target["expr"], values)
        yield PanelQuery(panel["title"], expr, target["legendFormat"])


def named(legend: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series in Grafana."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)
