"""Builds the command lines of the components from paths, ports and certificates."""

from dataclasses import dataclass
from pathlib import Path

from kftrainer.devcluster.components.pki import KeyPair, SigningKey
from kftrainer.devcluster.processes.ports import LOOPBACK

SERVICE_RANGE = "10.0.0.0/24"
POD_RANGE = "10.244.0.0/16"
Argv = list[str]


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How to reach etcd, which requires client certificates of its own CA."""

    port: int
    authority: Path
    client: KeyPair


def etcd(binary: Path, access: EtcdAccess, *, data: Path, peer_port: int, serving: KeyPair) -> Argv:
    """Return the command of a single member whose data need not be durable."""
    client = f"https://{LOOPBACK}:{access.port}"
    peer = f"https://{LOOPBACK}:{peer_port}"
    return [
        str(binary),
        "--name=dev",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=dev={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={access.authority}",
        f"--cert-file={serving.certificate}",
        f"--key-file={serving.key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={access.authority}",
        f"--peer-cert-file={serving.certificate}",
        f"--peer-key-file={serving.key}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(
    binary: Path,
    etcd: EtcdAccess,
    *,
    port: int,
    authority: Path,
    serving: KeyPair,
    signing: SigningKey,
) -> Argv:
    """Return the command of an API server with client certificates and RBAC."""
    return [
        str(binary),
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={authority}",
        "--authorization-mode=RBAC",
        f"--etcd-servers=https://{LOOPBACK}:{etcd.port}",
        f"--etcd-cafile={etcd.authority}",
        f"--etcd-certfile={etcd.client.certificate}",
        f"--etcd-keyfile={etcd.client.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={signing.public}",
        f"--service-account-signing-key-file={signing.private}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        # Loopback addresses are not allowed in the endpoints of the `kubernetes` Service.
        "--endpoint-reconciler-type=none",
        "--allow-privileged",
        "--profiling=false",
    ]


def audited(*, policy: Path, log: Path) -> Argv:
    """Return flags for an audit log of the requests that the policy selects."""
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        "--audit-log-maxsize=1000",  # in MB; large enough to avoid rotation
    ]


def kubelet_access(*, authority: Path, client: KeyPair) -> Argv:
    """Return flags of the API server for calls to kubelets, which serve logs."""
    return [
        f"--kubelet-certificate-authority={authority}",
        f"--kubelet-client-certificate={client.certificate}",
        f"--kubelet-client-key={client.key}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def _served(port: int, serving: KeyPair, kubeconfig: Path) -> Argv:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        "--leader-elect=false",
        "--profiling=false",
    ]


def controller_manager(
    binary: Path,
    *,
    port: int,
    serving: KeyPair,
    kubeconfig: Path,
    authority: Path,
    signing: SigningKey,
) -> Argv:
    """Return the command of the controller manager, with one service account per controller."""
    return [
        str(binary),
        *_served(port, serving, kubeconfig),
        f"--root-ca-file={authority}",
        f"--service-account-private-key-file={signing.private}",
        "--use-service-account-credentials",
        # With the default of 20 requests per second, deleting many objects takes minutes.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler(binary: Path, *, port: int, serving: KeyPair, kubeconfig: Path) -> Argv:
    """Return the command of the default scheduler."""
    return [str(binary), *_served(port, serving, kubeconfig)]


def jobset(binary: Path, *, config: Path, kubeconfig: Path) -> Argv:
    """Return the command of the JobSet controller with its webhooks."""
    return [str(binary), f"--config={config}", f"--kubeconfig={kubeconfig}"]


def kwok(binary: Path, *, port: int, config: Path, kubeconfig: Path, node_selector: str) -> Argv:
    """Return the command of kwok, which simulates the kubelet of every fake node."""
    return [
        str(binary),
        f"--config={config}",
        f"--kubeconfig={kubeconfig}",
        f"--manage-nodes-with-annotation-selector={node_selector}",
        f"--server-address={LOOPBACK}:{port}",
        f"--cidr={POD_RANGE}",
        "--node-lease-duration-seconds=40",
    ]
