"""How the manifests of JobSet and kwok are changed to work on loopback."""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from kftrainer.devcluster.cluster_options import FULL, NODE_CAPACITY, Shape
from kftrainer.devcluster.components import jobset, kwok
from kftrainer.devcluster.controlplane import crds_of
from kftrainer.devcluster.environment import Supplies


def webhook(resource: str) -> dict[str, Any]:
    return {
        "name": f"v{resource}.example",
        "clientConfig": {
            "service": {"name": "s", "namespace": "n", "path": f"/validate-{resource}"}
        },
        "rules": [{"resources": [resource]}],
    }


def test_webhooks_are_reached_by_url_and_pods_are_narrowed_to_those_of_jobsets() -> None:
    original = {
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validating"},
        "webhooks": [webhook("jobsets"), webhook("pods")],
    }
    [changed] = jobset.webhooks([original], port=1234, authority=b"PEM")
    first, second = changed["webhooks"]
    assert changed["metadata"] == {"name": "jobset-validating"}
    assert first["clientConfig"] == {
        "url": "https://127.0.0.1:1234/validate-jobsets",
        "caBundle": base64.b64encode(b"PEM").decode(),
    }
    assert "objectSelector" not in first
    assert second["objectSelector"] == jobset.ONLY_ITS_PODS
    assert "service" in original["webhooks"][0]["clientConfig"], "the input was changed"


def test_jobset_listens_on_loopback_only() -> None:
    parsed = json.loads(
        jobset.configuration(webhook_port=1, health_port=2, certificates=Path("/certs"))
    )
    assert parsed["webhook"] == {"host": "127.0.0.1", "port": 1, "certDir": "/certs"}
    assert parsed["health"] == {"healthProbeBindAddress": "127.0.0.1:2"}
    assert parsed["internalCertManagement"] == {"enable": False}


def test_roles_are_bound_to_the_service_account_of_jobset() -> None:
    role = {
        "kind": "ClusterRole",
        "metadata": {"name": "manager-role"},
        "rules": [{"verbs": ["get"]}],
    }
    namespace, account, renamed, binding = jobset.identity([role])
    assert (
        f"system:serviceaccount:{namespace['metadata']['name']}:{account['metadata']['name']}"
        == (jobset.USER)
    )
    assert renamed["metadata"]["name"] == binding["roleRef"]["name"] == "jobset-manager-role"
    assert renamed["rules"] == role["rules"]


def test_crd_of_jobset_is_installed_before_the_controllers_start(tmp_path: Path) -> None:
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "jobsets.jobset.x-k8s.io"},
    }
    file = tmp_path / jobset.CRD_FILE
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(crd))
    supplies = Supplies(programs={}, manifests={"jobset": tmp_path})
    assert crds_of(Shape(jobset=True), supplies) == [crd]


def test_job_pods_run_for_the_configured_duration() -> None:
    stages = [
        {"metadata": {"name": "pod-ready"}, "spec": {}},
        {
            "metadata": {"name": "pod-complete"},
            "spec": {
                "delay": {
                    "durationMilliseconds": 1000,
                    "jitterDurationMilliseconds": 5000,
                    "durationFrom": {"expressionFrom": "annotation"},
                }
            },
        },
    ]
    ready, complete = yaml.safe_load_all(kwok.stages(stages, pod_seconds=2.5))
    assert ready == stages[0]
    assert complete["spec"]["delay"] == {
        "durationMilliseconds": 2500,
        "durationFrom": {"expressionFrom": "annotation"},
    }


def test_node_reports_its_capacity() -> None:
    node = kwok.node(3, NODE_CAPACITY)
    assert node["metadata"]["name"] == "kwok-3"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_shape_round_trips_through_serialization(tmp_path: Path) -> None:
    from kftrainer.devcluster.artifacts.versions import VOLCANO_MANIFESTS

    shape = Shape(
        controllers=True, nodes=2, port=9, crds=(VOLCANO_MANIFESTS,), crd_files=(tmp_path / "a",)
    )
    assert Shape.from_json(json.loads(json.dumps(shape.to_json()))) == shape


def test_a_bare_shape_takes_no_more_than_two_programs() -> None:
    assert [binary.name for binary in Shape().binaries()] == ["etcd", "kube-apiserver"]
    assert len(FULL.binaries()) == 6
