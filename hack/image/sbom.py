"""The image's bill of materials, as CycloneDX 1.6: our packages by hash, and the base image.

The same commit and base image give the same bytes. The packages of the base image are not listed:
its own bill of materials lists them, and its digest identifies it.
"""

import json
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from image.lock import Package, packages_in
from image.recipe import NAME, ROOT, Recipe

Component = dict[str, Any]


def bill_of_materials(recipe: Recipe, base_image: str) -> dict[str, Any]:
    """Return the document for an image that is built by the recipe."""
    packages = [*packages_in(ROOT / "requirements.lock")]
    ours = f"pkg:pypi/{NAME}@{recipe.version}"
    base = _base(base_image)
    image: Component = {
        "type": "container",
        "bom-ref": "image",
        "name": NAME,
        "version": recipe.version,
        "properties": [{"name": "org.opencontainers.image.revision", "value": recipe.revision}],
    }
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(recipe.epoch, UTC).isoformat(),
            "component": image,
        },
        "components": [base, _own(recipe.version, ours), *map(_library, packages)],
        "dependencies": [
            {"ref": "image", "dependsOn": [base["bom-ref"], ours]},
            {"ref": ours, "dependsOn": _direct(packages)},
        ],
        "compositions": [{"aggregate": "incomplete", "assemblies": [base["bom-ref"]]}],
    }
    serial = uuid5(NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def write(file: Path, document: dict[str, Any]) -> None:
    """Write the document; the same document gives the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def _own(version: str, reference: str) -> Component:
    licenses = [{"license": {"id": "Apache-2.0"}}]
    return {
        "type": "application",
        "bom-ref": reference,
        "purl": reference,
        "name": NAME,
        "version": version,
        "licenses": licenses,
    }


def _library(package: Package) -> Component:
    reference = f"pkg:pypi/{package.name}@{package.version}"
    return {
        "type": "library",
        "bom-ref": reference,
        "purl": reference,
        "name": package.name,
        "version": package.version,
        # pip installs the file that fits the platform: it has one of these hashes.
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{package.name}/{package.version}/",
                "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
            }
        ],
    }


def _base(reference: str) -> Component:
    name, _, digest = reference.partition("@")
    repository, tag = _split_tag(name)
    component: Component = {
        "type": "container",
        "bom-ref": f"base:{reference}",
        "name": repository,
        "description": "the base image",
    }
    if tag:
        component["version"] = tag
    if digest:
        component["hashes"] = [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}]
    return component


def _split_tag(name: str) -> tuple[str, str]:
    """Split at the tag's colon; a registry's port has one too."""
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, "")


def _direct(packages: Sequence[Package]) -> list[str]:
    """Return the references of the direct dependencies of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {canonicalize_name(Requirement(each).name) for each in project["dependencies"]}
    return [f"pkg:pypi/{each.name}@{each.version}" for each in packages if each.name in wanted]
