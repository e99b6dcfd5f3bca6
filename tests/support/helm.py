"""Renders the chart with helm, without a cluster."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kftrainer.devcluster.artifacts.manifests import Loader

Object = dict[str, Any]
Values = Mapping[str, Any]

CHART = Path(__file__).parents[2] / "charts" / "kftrainer"
NAME, NAMESPACE = "kubeflow-trainer", "kubeflow-system"
HOOK = "helm.sh/hook"
# They are large, and none of the values but those of `crds` changes them.
WITHOUT_CRDS: Values = {"crds": {"install": False}}


# The chart has no default for it.
IMAGE: Values = {"image": {"registry": "ghcr.io", "repository": "kftrainer/kftrainer"}}


class HelmError(AssertionError):
    """helm failed; the text is its error output."""


def helm(program: Path, *arguments: str, values: Values | None = None) -> str:
    """What helm prints; the values go to it by standard input."""
    given = () if values is None else ("--values", "-")
    done = subprocess.run(
        [program, *arguments, *given],
        # JSON, where nothing can be taken for something else: YAML's ideas of a number differ.
        input=None if values is None else json.dumps(dict(values)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)  # lint writes its findings to the latter
    return done.stdout


def render(
    program: Path, values: Values | None = None, *, name: str = NAME, namespace: str = NAMESPACE
) -> list[Object]:
    """The objects that the chart renders with these values, hooks among them.

    Each set of values is rendered once; do not change the result.
    """
    return _rendered(program, yaml.safe_dump(merged(IMAGE, values or {})), name, namespace)


@cache
def _rendered(program: Path, values: str, name: str, namespace: str) -> list[Object]:
    text = helm(
        program,
        *("template", name, str(CHART), "--namespace", namespace),
        values=yaml.safe_load(values),
    )
    return [each for each in yaml.load_all(text, Loader=Loader) if each]


def notes(program: Path, values: Values | None = None) -> str:
    """The notes of the chart after an installation."""
    arguments = ("install", NAME, str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
    text = helm(program, *arguments, values=merged(IMAGE, WITHOUT_CRDS, values or {}))
    return text.partition("\nNOTES:\n")[2]


def refusal(program: Path, *settings: str, values: Values | None = None) -> str:
    """The error message of helm."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    try:
        helm(program, "template", NAME, str(CHART), *flags, values=merged(IMAGE, values or {}))
    except HelmError as error:
        return str(error)
    raise AssertionError(f"it was rendered: {settings} {values}")


def named(objects: Sequence[Object], kind: str, name: str = "", namespace: str = "") -> Object:
    """The object of this kind, name and namespace; those that are empty do not matter."""
    [found] = [
        each
        for each in objects
        if each["kind"] == kind
        and name in ("", each["metadata"]["name"])
        and namespace in ("", each["metadata"].get("namespace"))
    ]
    return found


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """The objects of a kind."""
    return [each for each in objects if each["kind"] == kind]


def is_hook(manifest: Object) -> bool:
    """Whether helm creates it at some moment only."""
    return HOOK in (manifest["metadata"].get("annotations") or {})


def merged(*values: Values) -> dict[str, Any]:
    """Values over values, as helm merges them."""
    out: dict[str, Any] = {}
    for each in values:
        for key, value in each.items():
            existing = out.get(key)
            both = isinstance(value, Mapping) and isinstance(existing, Mapping)
            out[key] = merged(existing, value) if both else value
    return out
