"""The image's bill of materials, base images by digest, and the audit of dependencies."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import audit
import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from image import __main__ as image
from image import recipe, sbom
from image.lock import packages_in
from image.recipe import ROOT, Recipe

DIGEST = "sha256:" + "0123456789abcdef" * 4
BASE = f"registry.example:5000/python:3.13-slim@{DIGEST}"
RECIPE = Recipe("kftrainer:test", 1_700_000_000, "1.2.3", "abc")


def cyclonedx_errors(document: dict[str, Any]) -> list[str]:
    folder = files("cyclonedx.schema") / "_res"
    schemas = {
        name: json.loads((folder / name).read_text())
        for name in (f"{each}.SNAPSHOT.schema.json" for each in ("bom-1.6", "spdx", "jsf-0.82"))
    }
    registry: Registry[Any] = Registry().with_resources(
        (f"http://cyclonedx.org/schema/{name}", Resource.from_contents(schema))
        for name, schema in schemas.items()
    )
    validator = Draft7Validator(schemas["bom-1.6.SNAPSHOT.schema.json"], registry=registry)
    return [f"{each.json_path}: {each.message}" for each in validator.iter_errors(document)]


@pytest.mark.parametrize("base", [BASE, "localhost/base:1", "python"])
def test_bill_of_materials_is_valid_cyclonedx(base: str) -> None:
    document = sbom.bill_of_materials(RECIPE, base)
    assert cyclonedx_errors(document) == []
    assert cyclonedx_errors({**document, "specVersion": "x", "components": [{}]})


def test_bill_of_materials_lists_the_locked_packages_with_all_hashes() -> None:
    document = sbom.bill_of_materials(RECIPE, BASE)
    listed = {each["name"]: each for each in document["components"] if each["type"] == "library"}
    lock = (ROOT / "requirements.lock").read_text()
    assert set(listed) == {each.name for each in packages_in(ROOT / "requirements.lock")}
    assert all(f"\n{name}=={each['version']} " in f"\n{lock}" for name, each in listed.items())
    hashes = [
        found["content"]
        for each in listed.values()
        for found in each["externalReferences"][0]["hashes"]
    ]
    assert len(hashes) == lock.count("--hash=sha256:")
    assert all(f"--hash=sha256:{each}" in lock for each in hashes)


def test_bill_of_materials_identifies_the_base_image_by_digest() -> None:
    base, ours, *_ = sbom.bill_of_materials(RECIPE, BASE)["components"]
    assert (base["name"], base["version"]) == ("registry.example:5000/python", "3.13-slim")
    assert base["hashes"] == [{"alg": "SHA-256", "content": DIGEST.removeprefix("sha256:")}]
    assert ours["purl"] == "pkg:pypi/kftrainer@1.2.3"


def test_bill_of_materials_of_the_same_recipe_has_the_same_bytes(tmp_path: Path) -> None:
    recipes = (RECIPE, RECIPE, replace(RECIPE, revision="def"))
    written = []
    for number, each in enumerate(recipes):
        file = tmp_path / str(number) / "sbom.cdx.json"
        sbom.write(file, sbom.bill_of_materials(each, BASE))
        written.append(file.read_bytes())
    assert written[0] == written[1] != written[2]


def test_packages_for_other_platforms_are_not_in_the_image(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(
        f"Here_It.is==1.0 ; sys_platform == 'linux' \\\n    --hash={DIGEST}\n"
        f"elsewhere==2.0 ; sys_platform == 'win32' \\\n    --hash={DIGEST}\n"
    )
    [found] = packages_in(lock)
    assert (found.name, found.version) == ("here-it-is", "1.0")
    assert found.hashes == (DIGEST.removeprefix("sha256:"),)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="default"),
        pytest.param(("--base-image", "python:3.13"), id="tag"),
        pytest.param(("--base-image", "python@sha256:123"), id="short-digest"),
        pytest.param(("--base-image", BASE, "--build-image", "python:3.13"), id="build-image"),
    ],
)
def test_base_image_without_a_digest_is_rejected(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert image.main([*flags]) == 2
    assert "has no digest" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--base-image", BASE), ("--allow-tag",)])
def test_image_is_built_with_its_bill_of_materials(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "docker"
    engine.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n')
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "sbom.cdx.json"
    assert image.main([*flags, "--engine", "docker", "--sbom", str(file)]) == 0
    base = json.loads(file.read_text())["components"][0]["bom-ref"]
    assert base == f"base:{BASE if BASE in flags else recipe.default_base_image()}"
    assert " --build-arg SOURCE_DATE_EPOCH=" in (tmp_path / "calls").read_text()


CLEAN = {"name": "a", "version": "1", "vulns": []}
BROKEN = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("reported", "code"),
    [
        pytest.param([CLEAN], audit.SUCCESS, id="clean"),
        pytest.param([CLEAN, BROKEN], audit.VULNERABLE, id="vulnerable"),
        pytest.param([CLEAN, SKIPPED], audit.UNKNOWN, id="skipped"),
        pytest.param([BROKEN, SKIPPED], audit.VULNERABLE, id="both"),
        pytest.param([], audit.UNKNOWN, id="missing"),
    ],
)
def test_audit_succeeds_only_if_every_package_was_looked_up(
    reported: list[dict[str, Any]], code: int
) -> None:
    packages = [each["name"] for each in reported] or ["a"]
    assert audit.findings({"dependencies": reported}, packages).exit_code == code


def test_audit_without_a_report_fails_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text("#!/bin/sh\necho 'connection refused' >&2\nexit 1\n")
    program.chmod(0o755)
    assert audit.main(["--program", str(program)]) == audit.UNKNOWN
    assert "pip-audit failed: connection refused" in capsys.readouterr().err
    assert audit.main(["--program", str(tmp_path / "missing")]) == audit.UNKNOWN
