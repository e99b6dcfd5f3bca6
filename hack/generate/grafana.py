"""Typed subset of Grafana dashboards: panels, rows and their positions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
Display = Literal["timeseries", "stat"]

SCHEMA_VERSION = 39  # Grafana 10
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, RED = "green", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """A Prometheus query and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    description: str = ""
    width: int = 8
    height: int = 7
    display: Display = "timeseries"
    style: Literal["line", "area", "bars"] = "line"
    red_below: float | None = None  # for single numbers
    red_above: float | None = None
    shows_names: bool = False  # the legend instead of the value
    colors: Mapping[str, str] | None = None  # by legend


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a heading and the panels below it."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the dashboard."""

    name: str
    label: str
    query: str  # for data sources: the type
    is_source: bool = False
    is_multi_value: bool = False


def dashboard(
    uid: str, title: str, *, rows: Sequence[Row], variables: Sequence[Variable], description: str
) -> Json:
    """Return the dashboard in the format that Grafana imports."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [uid, "kubeflow", "training"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_variable(each) for each in variables]},
        "panels": list(_placed(rows)),
    }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    """Return all panels from left to right and row by row, numbered from 1."""
    number, top = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": _place(0, top, COLUMNS, 1),
            "panels": [],
        }
        top += 1
        left = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top = 0, top + panel.height
            number += 1
            yield {
                "id": number,
                "gridPos": _place(left, top, panel.width, panel.height),
                **_panel(panel),
            }
            left += panel.width
        top += row.panels[-1].height


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"h": height, "w": width, "x": left, "y": top}


def _panel(panel: Panel) -> Json:
    alone = panel.display == "stat"
    return {
        "type": panel.display,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": _stat_options(panel) if alone else _series_options(),
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": alone,
                "range": not alone,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def _defaults(panel: Panel) -> Json:
    defaults: Json = {
        "unit": panel.unit,
        "noValue": "none",
        "color": {"mode": "thresholds" if panel.display == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel)},
        "mappings": [],
    }
    if panel.display == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "bars" if panel.style == "bars" else "line",
            "lineWidth": 1,
            "fillOpacity": {"line": 0, "area": 30, "bars": 60}[panel.style],
            "stacking": {"mode": "none" if panel.style == "line" else "normal", "group": "A"},
            "showPoints": "never",
            "spanNulls": False,
        }
    return defaults


def _steps(panel: Panel) -> list[Json]:
    if panel.red_below is not None:
        return [{"color": RED, "value": None}, {"color": GREEN, "value": panel.red_below}]
    steps: list[Json] = [{"color": GREEN, "value": None}]
    if panel.red_above is not None:
        steps.append({"color": RED, "value": panel.red_above})
    return steps


def _overrides(panel: Panel) -> Iterator[Json]:
    for name, color in (panel.colors or {}).items():
        yield {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }


def _stat_options(panel: Panel) -> Json:
    return {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if panel.shows_names else "auto",
    }


def _series_options() -> Json:
    return {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _variable(variable: Variable) -> Json:
    common: Json = {"name": variable.name, "label": variable.label, "hide": 0, "current": {}}
    if variable.is_source:
        return {**common, "type": "datasource", "query": variable.query}
    return {
        **common,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "multi": variable.is_multi_value,
        "includeAll": variable.is_multi_value,
        **({"allValue": ".*"} if variable.is_multi_value else {}),
    }
