"""Whole objects: each golden case, planned from nothing but its documents."""

import re
from pathlib import Path

import pytest

from kftrainer.api.schema.offline import KINDS, stored
from tests.support.golden import CASES, EXPECTED, FIXED, FIXED_CASES, FOLDER, INPUT, NAMES, Case

PARITY = Path(__file__).parents[3] / "docs" / "parity.md"
PLUGINS = ("plain", "torch", "torchtune", "mpi", "jobset", "overrides", "coscheduling", "volcano")
LEAST_IN_ALL = 69
# A defect by its number, or else by the subject of its row in docs/parity.md.
NAMED = r"^# (D\d+|.*`): "

each_case = pytest.mark.parametrize("case", CASES, ids=NAMES)
each_fixed_case = pytest.mark.parametrize(
    "case", FIXED_CASES, ids=[case.name for case in FIXED_CASES]
)


@each_case
def test_plan_equals_the_golden_file(case: Case) -> None:
    assert [planned.manifest for planned in case.planned()] == case.expected


@each_case
def test_golden_documents_are_in_stored_form(case: Case) -> None:
    ours = [each for each in case.documents if each["kind"] in KINDS]
    kept = [stored(each) for each in ours]
    assert [each.document for each in kept] == ours
    assert [(each.unknown, each.problems) for each in kept] == [([], [])] * len(kept)


def test_every_file_belongs_to_a_case() -> None:
    files = {str(file.relative_to(FOLDER)) for file in FOLDER.glob("*/*")}
    assert files == {
        *(f"{name}{ending}" for name in NAMES for ending in (INPUT, EXPECTED)),
        *(f"{case.name}{FIXED}" for case in FIXED_CASES),
    }


def test_every_plugin_has_a_golden_case() -> None:
    ours = {name.removeprefix("own/").partition("-")[0] for name in NAMES if "own/" in name}
    assert (ours, len(CASES) >= LEAST_IN_ALL) == ({*PLUGINS}, True)


@each_fixed_case
def test_difference_from_the_original_names_its_defect(case: Case) -> None:
    [head] = re.findall(NAMED, case.file(FIXED).read_text(), re.MULTILINE)
    assert case.expected != case.original
    assert re.search(rf"(\b|\| ){re.escape(head)}(\b| \|)", PARITY.read_text())


def test_keys_are_generated_when_the_secret_is_created() -> None:
    [secret] = [
        planned
        for planned in Case("original/g07_mpi_launcher_not_node").planned()
        if planned.manifest["kind"] == "Secret"
    ]
    assert secret.generate is not None
    key_pair = secret.generate()
    assert {key: value for key, value in key_pair.items() if key != "data"} == secret.manifest
    assert sorted(key_pair["data"]) == ["ssh-privatekey", "ssh-publickey"]
    assert all(key_pair["data"].values())
