"""The CRDs themselves: whether the API server is content with them, and kubectl with the result."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import yaml

from kftrainer.cli.commands import crds
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane, running
from tests.support.objects import train_job

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMES = [
    f"{plural}.trainer.kubeflow.org"
    for plural in ("clustertrainingruntimes", "trainingruntimes", "trainjobs")
]
Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(kubectl_program: Path, control_plane: ControlPlane, tmp_path: Path) -> Kubectl:
    """Runs kubectl as the administrator and returns what it prints."""
    environ = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "HOME": str(tmp_path)}

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [kubectl_program, *arguments],
            env=environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_established_and_nothing_is_wrong_with_its_schema(
    api: ApiClient, name: str
) -> None:
    found = await api.get(f"{CRDS}/{name}")
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("name", NAMES)
async def test_it_leaves_room_for_client_side_apply(name: str) -> None:
    [text] = [each for each in crds.documents() if f"name: {name}\n" in each]
    size = len(orjson.dumps(yaml.safe_load(text)))
    assert size < 160 * 1024, "an annotation may hold 256 KiB"


async def test_both_ways_of_kubectl_apply_install_them(
    kubectl_program: Path, tmp_path: Path
) -> None:
    async with running() as plane:
        for way in ("--server-side=false", "--server-side", "--server-side=false"):
            done = subprocess.run(
                [kubectl_program, f"--kubeconfig={plane.kubeconfig}", "apply", way, "-f", "-"],
                input="---\n".join(crds.documents()),
                env={**os.environ, "HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("customresourcedefinition") == 3


async def test_kubectl_explain_prints_descriptions(kubectl: Kubectl) -> None:
    output = kubectl("explain", "trainjob.spec.trainer")
    assert "The training container; unset fields" in output
    assert "numNodes\t<integer>\n    Number of nodes." in output
    for field in ("trainjob.spec.podTemplateOverrides.spec", "ctr.spec.mlPolicy.mpi"):
        assert "<no description>" not in kubectl("explain", field)


async def test_everything_that_we_own_is_described(api: ApiClient) -> None:
    def undescribed(schema: dict[str, object], path: str) -> list[str]:
        found = []
        for name, each in schema.get("properties", {}).items():  # type: ignore[attr-defined]
            here = f"{path}.{name}"
            if not each.get("description"):
                found.append(here)
            elif "description" in each.get("items", each):
                found += undescribed(each.get("items", each), here)
        return found

    for name in NAMES:
        crd = await api.get(f"{CRDS}/{name}")
        root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        del root["properties"]["metadata"]
        # Below these stand Kubernetes' own types.
        own_paths = [
            path
            for path in undescribed(root, "")
            if not any(
                upstream_field in path
                for upstream_field in (
                    ".template.spec.",
                    ".affinity.",
                    ".resourcesPerNode.",
                    ".secretRef.",
                )
            )
        ]
        assert own_paths == []


async def test_kubectl_get_prints_the_documented_columns(
    kubectl: Kubectl, api: ApiClient, namespace: str
) -> None:
    kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(train_job(trainer={"numNodes": 2}))
    )
    path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/job"
    job = await api.get(path)
    condition = {
        "reason": "Resumed",
        "message": "TrainJob is resumed",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    job["status"] = {
        "conditions": [
            {**condition, "type": "Suspended", "status": "False"},
            {**condition, "type": "Complete", "status": "True", "reason": "AllJobsCompleted"},
        ],
        "state": "Complete",
        "nodes": {"ready": 2, "desired": 2},
    }
    await api.request("PUT", f"{path}/status", body=job)

    header, row = kubectl("get", "tj", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "STATE", "READY", "NODES", "RUNTIME", "AGE"]
    assert row.split()[:5] == ["job", "Complete", "2", "2", "torch-distributed"]
    header, row = kubectl("get", "trainjobs", "-n", namespace, "-o", "wide").splitlines()
    assert header.split()[-1] == "REASON"
    assert row.split()[-1] == "AllJobsCompleted"
    assert "trainjob.trainer.kubeflow.org/job" in kubectl(
        "get", "kubeflow", "-n", namespace, "-o", "name"
    )


async def test_kubectl_apply_can_be_done_again(kubectl: Kubectl, namespace: str) -> None:
    manifest = json.dumps(train_job(trainer={"numNodes": 2}, suspend=True))
    for way in ("--server-side=false", "--server-side"):
        apply = ("apply", way, "--force-conflicts=true", "-n", namespace, "-f", "-")
        arguments = [each for each in apply if way == "--server-side" or "conflicts" not in each]
        kubectl(*arguments, stdin=manifest)
    patch = ("patch", "tj", "job", "-n", namespace, "--type=merge")
    kubectl(*patch, "-p", '{"spec":{"suspend":false}}')
    assert kubectl("get", "tj", "job", "-n", namespace, "-o", "jsonpath={.spec.suspend}") == "false"
