"""The dashboard is one that Grafana can show."""

import itertools
import re
from typing import Any

import pytest

from generate.dashboard import kftrainer
from generate.grafana import COLUMNS
from monitoring.panels import filled_in, named, variables_in

DASHBOARD = kftrainer()
PANELS = DASHBOARD["panels"]
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]
OF_GRAFANA = {"__rate_interval", "__range"}
# Those that are used, out of Grafana's list.
UNITS = {"short", "percentunit", "s", "d", "ops", "reqps", "bytes"}


def titled(panel: dict[str, Any]) -> str:
    title: str = panel["title"]
    return title


def test_dashboard_uid_and_row_titles() -> None:
    assert DASHBOARD["uid"] == "kftrainer"
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == [
        "At a glance",
        "Training",
        "Operator",
        "Webhook",
    ]


def test_panels_have_numbers_and_titles_of_their_own() -> None:
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    across = range(place["x"], place["x"] + place["w"])
    down = range(place["y"], place["y"] + place["h"])
    return set(itertools.product(across, down))


def test_panels_are_adjacent_without_gaps() -> None:
    occupied: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        for cell in cells(panel):
            assert cell not in occupied, f"{panel['title']} stands on {occupied[cell]}"
            occupied[cell] = panel["title"]
    bottom = max(y for _, y in occupied) + 1
    assert set(occupied) == set(itertools.product(range(COLUMNS), range(bottom)))


@pytest.mark.parametrize("panel", SHOWN, ids=titled)
def test_each_panel_has_a_query_and_a_unit(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    places = [target["refId"] for target in panel["targets"]]
    assert len(set(places)) == len(places)
    for querier in (panel, *panel["targets"]):
        assert querier["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert 'job="$job"' in target["expr"], "the query selects all jobs"
        assert target["expr"].count("(") == target["expr"].count(")")
    if len(panel["targets"]) > 1:
        assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("panel", SHOWN, ids=titled)
def test_legend_uses_labels_of_the_query_result(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            grouped = re.search(rf"by \([^)]*\b{label}\b[^)]*\)", target["expr"])
            assert grouped or label == "instance", f"{label} is summed away"


def test_all_variables_are_known() -> None:
    listed = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert listed == ["datasource", "job", "namespace"]
    query = " ".join(target["expr"] for panel in SHOWN for target in panel["targets"])
    query += " ".join(each["query"]["query"] for each in DASHBOARD["templating"]["list"][1:])
    assert variables_in(query) == {"job", "namespace", *OF_GRAFANA}


def test_variables_are_filled_in_and_legends_named() -> None:
    assert (
        filled_in('up{job="$job"}[${__range}]', {"job": "j", "__range": "1m"}) == 'up{job="j"}[1m]'
    )
    with pytest.raises(KeyError, match="nowhere"):
        filled_in("$nowhere", {})
    assert named("{{a}} of {{ b }}", {"a": "1", "b": "2"}) == "1 of 2"
