"""The CustomResourceDefinitions of the release."""

import shutil
from pathlib import Path

import pytest
import yaml

from kftrainer.devcluster.artifacts.manifests import Loader, read_documents
from tests.support.helm import CHART, IMAGE, HelmError, Object, helm, of_kind, render

KEEP = "helm.sh/resource-policy"
SOURCES = CHART.parents[1] / "src" / "kftrainer" / "api" / "crds"


def crds_in(objects: list[Object]) -> dict[str, Object]:
    found = of_kind(objects, "CustomResourceDefinition")
    return {each["metadata"]["name"]: each for each in found}


def generated() -> dict[str, Object]:
    found = [each for file in SOURCES.glob("*.yaml") for each in read_documents(file)]
    return {each["metadata"]["name"]: each for each in found}


def test_they_are_those_that_are_generated_and_stay(helm_program: Path) -> None:
    found = crds_in(render(helm_program))
    assert {name: each["spec"] for name, each in found.items()} == {
        name: each["spec"] for name, each in generated().items()
    }
    for each in found.values():
        assert each["metadata"]["annotations"] == {KEEP: "keep"}
        assert each["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def test_crds_can_be_deleted_with_the_release(helm_program: Path) -> None:
    values = {"crds": {"keep": False, "annotations": {"note": "ours"}}}
    for each in crds_in(render(helm_program, values)).values():
        assert each["metadata"]["annotations"] == {"note": "ours"}


def test_crds_can_be_excluded(helm_program: Path) -> None:
    assert not crds_in(render(helm_program, {"crds": {"install": False}}))


def test_chart_without_crd_files_fails_with_a_message(helm_program: Path, tmp_path: Path) -> None:
    chart = shutil.copytree(CHART, tmp_path / "kftrainer")
    shutil.rmtree(chart / "files" / "crds")
    with pytest.raises(HelmError, match=r"crds\.install: this copy of the chart has no files/crds"):
        helm(helm_program, "template", "x", str(chart))


def test_nothing_of_the_chart_is_a_link() -> None:
    """Flux leaves links out of what it fetches, and who copies the chart takes them along."""
    assert not [path for path in CHART.rglob("*") if path.is_symlink()]


def test_a_package_holds_them(helm_program: Path, tmp_path: Path) -> None:
    helm(helm_program, "package", str(CHART), "--destination", str(tmp_path))
    [package] = tmp_path.glob("*.tgz")
    text = helm(helm_program, "template", "x", str(package), values=IMAGE)
    names = {each["metadata"]["name"] for each in yaml.load_all(text, Loader=Loader) if each}
    assert set(generated()) <= names


def test_they_are_nothing_that_helm_installs_by_itself() -> None:
    assert not (CHART / "crds").exists()  # it would install them first, and never upgrade them
