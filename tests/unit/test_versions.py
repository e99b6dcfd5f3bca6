"""One version, from pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from generate import versions
from kftrainer.cli.main import main

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# As the semver.org specification has it, which Helm requires of a chart.
SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def test_command_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"kftrainer {VERSION}\n"


def test_chart_has_the_version() -> None:
    chart = yaml.safe_load((ROOT / versions.CHART).read_text())
    assert (chart["appVersion"], chart["version"]) == (VERSION, versions.semver(VERSION))
    assert SEMVER.fullmatch(chart["version"])


@pytest.mark.parametrize(
    ("version", "expected"), [("0.1.0.dev0", "0.1.0-dev0"), ("1.2.3", "1.2.3")]
)
def test_helm_version_is_the_same_version(version: str, expected: str) -> None:
    assert versions.semver(version) == expected


def test_files_that_repeat_the_version_are_up_to_date() -> None:
    stale = {path for path, text in versions.texts(ROOT).items() if path.read_text() != text}
    assert stale == set()


def test_documents_name_no_other_version_of_the_image() -> None:
    image = re.compile(r"/kftrainer:([0-9][\w.+-]*)|image\.tag=([0-9][\w.+-]*)")
    documents = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("charts/*/*.md")]
    found = {
        (path.name, tag)
        for path in documents
        for match in image.finditer(path.read_text())
        for tag in match.groups()
        if tag and path.name != "CHANGELOG.md"
    }
    assert {tag for _, tag in found} == {VERSION}, found
