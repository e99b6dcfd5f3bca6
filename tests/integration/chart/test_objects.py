"""What is true of all objects, with every set of values."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.chart.conftest import Rendering
from tests.integration.chart.value_sets import CELLS
from tests.support.helm import CHART, Object, helm, named, of_kind
from tests.support.object_schemas import NEWEST, OLDEST, UnknownKindError, problems_of

VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
FOREIGN = {"monitoring.coreos.com/v1", "cert-manager.io/v1"}
REFERENCE = re.compile(r"[a-z0-9.:/_-]+[a-z0-9](:[\w][\w.-]*|@sha256:[0-9a-f]{64})")


def pod_of(manifest: Object) -> Object | None:
    """The spec of the pods that the object makes, or is."""
    if manifest["kind"] == "Pod":
        spec: Object = manifest["spec"]
        return spec
    if manifest["kind"] in ("Deployment", "Job"):
        return pod_of({**manifest["spec"]["template"], "kind": "Pod"})
    return None


def test_helm_lint_passes(cell: str, helm_program: Path) -> None:
    helm(helm_program, "lint", "--strict", "--quiet", str(CHART), values=CELLS[cell])


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_field_is_in_the_kubernetes_schema(objects: list[Object], version: str) -> None:
    unknown = set()
    for each in objects:
        if each["kind"] == "CustomResourceDefinition":
            continue  # the API server itself looks at it
        try:
            problems = problems_of(each, version)
        except UnknownKindError:
            unknown.add(each["apiVersion"])
            continue
        assert not problems, (each["kind"], each["metadata"]["name"], problems)
    assert unknown <= FOREIGN


def test_no_object_is_there_twice(objects: list[Object]) -> None:
    keys = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in objects
    ]
    assert len(keys) == len(set(keys))


def test_every_object_has_release_labels(objects: list[Object]) -> None:
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "kubeflow-trainer"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"] == f"kftrainer-{VERSION}"


def test_every_container_image_has_a_tag_or_digest(objects: list[Object]) -> None:
    for image in images_in(objects):
        assert REFERENCE.fullmatch(image), image
        assert not image.endswith(":latest")


def images_in(objects: list[Object]) -> set[str]:
    """All images, those in the runtimes' files among them."""
    files = [
        yaml.safe_load(text)
        for each in of_kind(objects, "ConfigMap")
        for name, text in (each.get("data") or {}).items()
        if each["metadata"]["name"].endswith("-runtimes")
    ]
    return {*_images(objects), *_images(files)}


def _images(manifest: Any) -> set[str]:
    if isinstance(manifest, list):
        return {image for each in manifest for image in _images(each)}
    if not isinstance(manifest, dict) or manifest.get("kind") == "CustomResourceDefinition":
        return set()
    own = {manifest["image"]} if isinstance(manifest.get("image"), str) else set()
    if manifest.get("name") == "CACHE_IMAGE":
        own.add(manifest["value"])
    return own | {image for each in manifest.values() for image in _images(each)}


def test_pods_satisfy_the_restricted_pod_security_standard(objects: list[Object]) -> None:
    pods = [spec for each in objects if (spec := pod_of(each)) is not None]
    assert pods
    for pod in pods:
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 65532
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
            assert "memory" in container["resources"]["limits"]
            assert "cpu" not in container["resources"]["limits"]
        assert {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}} in pod["volumes"]


def test_all_images_use_the_configured_registry(rendered: Rendering) -> None:
    found = images_in(rendered(CELLS["mirror"]))
    assert all(each.startswith("mirror.example:5000/all/") for each in found), found
    digest = CELLS["mirror"]["image"]["digest"]
    assert f"mirror.example:5000/all/kftrainer/kftrainer@{digest}" in found
    assert f"mirror.example:5000/all/pytorch/pytorch@{digest}" in found


def test_labels_and_annotations_of_all_objects(rendered: Rendering) -> None:
    values = {
        "commonLabels": {"team": "ml", "app.kubernetes.io/managed-by": "me"},
        "commonAnnotations": {"note": "ours"},
        "crds": {"install": True, "keep": False},
        "metrics": {"serviceMonitor": {"enabled": True}},
        "certs": {"mode": "cert-manager"},
    }
    plain = rendered({key: values[key] for key in ("crds", "metrics", "certs")})
    objects = rendered(values)
    for each in objects:
        metadata = each["metadata"]
        assert metadata["labels"]["team"] == "ml"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert metadata["annotations"]["note"] == "ours"
    deployment = named(objects, "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "ml"
    # A selector cannot be changed later.
    before = named(plain, "Deployment")["spec"]["selector"]
    assert deployment["spec"]["selector"] == before
