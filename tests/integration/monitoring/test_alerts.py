"""The alerts of the chart, as Prometheus' own tool understands them."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import WITHOUT_CRDS, HelmError, named, render

HERE = Path(__file__).parent
CASES = sorted((HERE / "alerts").glob("*.yaml"))
OPERATIONS = HERE.parents[2] / "docs" / "operations.md"
RUNBOOKS = "https://runbooks.example/#"
SEVERITIES = {"critical", "warning"}

Rule = dict[str, Any]


def groups_with(helm: Path, **rules: Any) -> list[Rule]:
    """The groups of rules that the chart renders."""
    values = {**WITHOUT_CRDS, "metrics": {"rules": {"enabled": True, **rules}}}
    groups: list[Rule] = named(render(helm, values), "PrometheusRule")["spec"]["groups"]
    return groups


def alerts_of(groups: list[Rule]) -> dict[str, Rule]:
    """All rules by the names of their alerts."""
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@pytest.fixture(scope="session")
def groups(helm_program: Path) -> list[Rule]:
    """The rules as the tests have them: with a short name for the job."""
    return groups_with(helm_program, job="kftrainer", runbookUrl=RUNBOOKS)


@pytest.fixture(scope="session")
def alerts(groups: list[Rule]) -> dict[str, Rule]:
    """Their alerts by name."""
    return alerts_of(groups)


def promtool(program: Path, folder: Path, *arguments: str) -> None:
    """Run promtool, which must be content."""
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_the_rules(
    helm_program: Path, promtool_program: Path, tmp_path: Path
) -> None:
    rendered = {"groups": groups_with(helm_program)}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rendered))
    promtool(promtool_program, tmp_path, "check", "rules", "--lint=all", "rules.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_they_fire_when_they_should_and_only_then(
    case: Path, groups: list[Rule], promtool_program: Path, tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    shutil.copy(case, tmp_path)
    promtool(promtool_program, tmp_path, "test", "rules", case.name)


def test_each_alert_is_tested_firing_and_not_firing(alerts: dict[str, Rule]) -> None:
    fires, is_quiet = set(), set()
    for case in CASES:
        for test in yaml.safe_load(case.read_text())["tests"]:
            for alert_case in test.get("alert_rule_test", ()):
                (fires if alert_case.get("exp_alerts") else is_quiet).add(alert_case["alertname"])
    assert fires == set(alerts)
    assert is_quiet == set(alerts)


def test_each_alert_has_a_description_and_a_runbook_url(alerts: dict[str, Rule]) -> None:
    for name, rule in alerts.items():
        assert name.startswith("Kftrainer")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == RUNBOOKS + name.lower()
        assert rule["annotations"]["summary"].endswith(".")
        assert "{{" in rule["annotations"]["description"], "it names nothing"
        assert rule["labels"]["severity"] in SEVERITIES


def test_each_alert_is_documented(alerts: dict[str, Rule]) -> None:
    headings = re.findall(r"^#+ (Kftrainer\w+)$", OPERATIONS.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(alerts)


def test_rules_query_the_scraped_job(helm_program: Path) -> None:
    def jobs(**metrics: Any) -> set[str]:
        values = {**WITHOUT_CRDS, "metrics": {"rules": {"enabled": True}, **metrics}}
        found = named(render(helm_program, values), "PrometheusRule")
        return set(re.findall(r'\bjob="([^"]*)"', json.dumps(found).replace("\\", "")))

    by_pods = {"enabled": True, "namespace": "monitoring", "authorization": {"type": "Bearer"}}
    assert jobs() == {"kubeflow-trainer-controller-manager"}
    assert jobs(serviceMonitor={"enabled": True}) == {"kubeflow-trainer-controller-manager"}
    assert jobs(podMonitor=by_pods) == {"monitoring/kubeflow-trainer-controller-manager"}
    assert jobs(rules={"enabled": True, "job": "mine"}) == {"mine"}


def test_rule_file_is_valid_for_prometheus(promtool_program: Path) -> None:
    files = HERE.parents[2] / "charts" / "kftrainer" / "files"
    promtool(promtool_program, files, "check", "rules", "--lint=all", "alerts.yaml")


def test_alerts_can_be_disabled_and_have_other_severities(
    helm_program: Path, alerts: dict[str, Rule]
) -> None:
    on_jobs = [name for name in alerts if "TrainJob" in name]
    changed = groups_with(
        helm_program,
        disabled=["KftrainerDown", *on_jobs],
        severities={"KftrainerNoLeader": "page"},
        runbookUrl="",
    )
    assert set(alerts) - set(alerts_of(changed)) == {"KftrainerDown", *on_jobs}
    assert all(group["rules"] for group in changed), "a group without rules is left"
    weighed = alerts_of(changed)["KftrainerNoLeader"]
    assert weighed["labels"] == {"severity": "page"}
    assert "runbook_url" not in weighed["annotations"]


@pytest.mark.parametrize(
    "rules", [{"disabled": ["KftrainerDwon"]}, {"severities": {"KftrainerDwon": "page"}}]
)
def test_unknown_alert_is_reported(helm_program: Path, rules: Any) -> None:
    with pytest.raises(HelmError, match="unknown alert KftrainerDwon; known alerts: KftrainerDown"):
        groups_with(helm_program, **rules)


@pytest.mark.parametrize("part", ["rules", "dashboard"])
def test_nothing_is_watched_without_metrics(helm_program: Path, part: str) -> None:
    values = {**WITHOUT_CRDS, "metrics": {"enabled": False, part: {"enabled": True}}}
    with pytest.raises(HelmError, match=f"metrics.{part}.enabled: requires metrics.enabled=true"):
        render(helm_program, values)
