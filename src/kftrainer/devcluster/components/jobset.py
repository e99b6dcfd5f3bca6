"""Installs JobSet from its own manifests, with webhooks that are called on loopback."""

import base64
import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from kftrainer.devcluster.artifacts.manifests import Document, read_documents
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.components import commands, pki
from kftrainer.devcluster.components.rbac import bound_roles
from kftrainer.devcluster.environment import READY_WITHIN, Environment
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.waiting import until

NAMESPACE = "jobset-system"
SERVICE_ACCOUNT = "jobset-controller-manager"
# RBAC treats a client certificate with this name as the service account.
USER = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
CRD_FILE = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
ROLE_FILE = "config/components/rbac/role.yaml"
WEBHOOK_FILE = "config/components/webhook/manifests.yaml"
# JobSet's own installation limits its pod webhooks like this; its generated file does not.
ONLY_ITS_PODS = {
    "matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]
}

# A minimal JobSet that the webhooks admit.
PROBE: Document = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "probe",
                "template": {
                    "spec": {
                        "template": {
                            "spec": {
                                "restartPolicy": "Never",
                                "containers": [{"name": "probe", "image": "probe"}],
                            }
                        }
                    }
                },
            }
        ]
    },
}
# Rejected only by a webhook: the name is too long for the names of its pods.
WRONG_PROBE: Document = {**PROBE, "metadata": {**PROBE["metadata"], "name": "x" * 60}}


def configuration(*, webhook_port: int, health_port: int, certificates: Path) -> str:
    """Return the controller's configuration: one replica, with external certificates."""
    return json.dumps(
        {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health_port}"},
            "webhook": {"host": LOOPBACK, "port": webhook_port, "certDir": str(certificates)},
        }
    )


def identity(roles: Iterable[Document]) -> Iterator[Document]:
    """Yield the namespace, the service account and the RBAC rules of JobSet."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE},
    }
    yield from bound_roles("jobset", roles, SERVICE_ACCOUNT, NAMESPACE)


def webhooks(
    configurations: Iterable[Document], *, port: int, authority: bytes
) -> Iterator[Document]:
    """Yield JobSet's webhook configurations with URLs, as there is no Service network."""
    for original in configurations:
        configuration = deepcopy(original)
        configuration["metadata"] = {"name": f"jobset-{original['metadata']['name']}"}
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"] = _by_url(webhook["clientConfig"], port, authority)
            if any("pods" in rule["resources"] for rule in webhook["rules"]):
                webhook["objectSelector"] = ONLY_ITS_PODS
        yield configuration


def _by_url(client: dict[str, Any], port: int, authority: bytes) -> dict[str, Any]:
    return {
        "url": f"https://{LOOPBACK}:{port}{client['service']['path']}",
        "caBundle": base64.b64encode(authority).decode(),
    }


async def start(environment: Environment, client: ApiClient) -> None:
    """Start JobSet, whose CRD is installed, and wait until its webhooks respond."""
    files = environment.supplies.manifests["jobset"]
    for document in identity(read_documents(files / ROLE_FILE)):
        await client.apply(document)

    webhook_port, health_port = environment.ports.reserve(), environment.ports.reserve()
    certificates = environment.folder / "pki" / "jobset"
    authority = pki.Authority(certificates, "jobset", environment.now)
    authority.issue("tls", common_name="jobset", hosts=[LOOPBACK])
    config = environment.folder / "jobset.yaml"
    config.write_text(
        configuration(webhook_port=webhook_port, health_port=health_port, certificates=certificates)
    )
    argv = commands.jobset(
        environment.supplies.programs["jobset"],
        config=config,
        kubeconfig=environment.part_kubeconfig("jobset", USER),
    )
    await environment.wait_ready(
        environment.begin("jobset", argv), f"http://{LOOPBACK}:{health_port}/readyz"
    )

    originals = read_documents(files / WEBHOOK_FILE)
    trusted = authority.certificate.read_bytes()
    for document in webhooks(originals, port=webhook_port, authority=trusted):
        await client.apply(document)
    await _wait_for_webhooks(client)


async def _wait_for_webhooks(client: ApiClient) -> None:
    """Create JobSets in dry runs until both webhooks respond.

    The controller reports readiness before its handlers are registered, and the API server loads
    the mutating and validating configurations at different times. A JobSet that the mutating
    webhook has defaulted has a successPolicy.
    """

    async def answer() -> bool:
        try:
            admitted = await _try(client, PROBE)
        except ApiError:
            return False
        return "successPolicy" in admitted["spec"] and await _refuse(client)

    await until(answer, within=READY_WITHIN, what="JobSet's webhooks to respond")


async def _refuse(client: ApiClient) -> bool:
    try:
        await _try(client, WRONG_PROBE)
    except ApiError as error:
        return "denied the request" in str(error)
    return False


async def _try(client: ApiClient, job_set: Document) -> Object:
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
    return await client.request("POST", path, query={"dryRun": "All"}, body=job_set)
