"""Fake nodes by kwok, on which pods start at once and run for a configured time."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import yaml

from kftrainer.devcluster.artifacts.manifests import Document, read_documents
from kftrainer.devcluster.artifacts.versions import KWOK_MANIFESTS
from kftrainer.devcluster.client import ApiClient, condition_is_true
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.components import commands
from kftrainer.devcluster.components.rbac import bound_roles
from kftrainer.devcluster.environment import READY_WITHIN, Environment
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.waiting import until

NAMESPACE = "kube-system"
SERVICE_ACCOUNT = "kwok-controller"
USER = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
ROLE_FILE = "kustomize/rbac/role.yaml"
FAKE_NODE = {"kwok.x-k8s.io/node": "fake"}
NODE_SELECTOR = "kwok.x-k8s.io/node=fake"
COMPLETE_STAGE = "pod-complete"


def stages(originals: Iterable[Document], *, pod_seconds: float) -> str:
    """Return kwok's stages as a configuration file, with Job pods that run for `pod_seconds`.

    A pod can request another duration with the annotation `pod-complete.stage.kwok.x-k8s.io/delay`,
    and failure with the label `pod-container-running-failed.stage.kwok.x-k8s.io: "true"`.
    """
    return yaml.safe_dump_all(_tuned(stage, pod_seconds) for stage in originals)


def _tuned(original: Document, pod_seconds: float) -> Document:
    stage = deepcopy(original)
    if stage["metadata"]["name"] == COMPLETE_STAGE:
        delay = stage["spec"]["delay"]
        delay["durationMilliseconds"] = round(pod_seconds * 1000)
        del delay["jitterDurationMilliseconds"]
    return stage


def identity(roles: Iterable[Document]) -> Iterator[Document]:
    """Yield kwok's service account and RBAC rules."""
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE},
    }
    yield from bound_roles("kwok", roles, SERVICE_ACCOUNT, NAMESPACE)


def node(number: int, capacity: Mapping[str, str]) -> dict[str, Any]:
    """Return a node that kwok manages."""
    name = f"kwok-{number}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": FAKE_NODE,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
            },
        },
        "status": {"capacity": dict(capacity), "allocatable": dict(capacity)},
    }


async def start(environment: Environment, client: ApiClient, shape: Shape) -> None:
    """Start kwok and wait until all nodes are Ready."""
    files = environment.supplies.manifests["kwok"]
    for document in identity(read_documents(files / ROLE_FILE)):
        await client.apply(document)
    documents = [each for file in KWOK_MANIFESTS.files for each in read_documents(files / file)]
    originals = [document for document in documents if document["kind"] == "Stage"]
    config = environment.folder / "kwok.yaml"
    config.write_text(stages(originals, pod_seconds=shape.pod_seconds))

    port = environment.ports.reserve()
    argv = commands.kwok(
        environment.supplies.programs["kwok"],
        port=port,
        config=config,
        kubeconfig=environment.part_kubeconfig("kwok", USER),
        node_selector=NODE_SELECTOR,
    )
    await environment.wait_ready(
        environment.begin("kwok", argv), f"http://{LOOPBACK}:{port}/readyz"
    )
    for number in range(shape.nodes):
        await client.create(node(number, shape.node_capacity))

    async def all_ready() -> bool:
        nodes = (await client.get("/api/v1/nodes"))["items"]
        return all(condition_is_true(each, "Ready") for each in nodes)

    await until(all_ready, within=READY_WITHIN, what="all nodes to become Ready")
