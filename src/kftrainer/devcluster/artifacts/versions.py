"""Versions of the components of a control plane, and their sources: pinned Go modules.

The modules from which binaries are built are in `gomodules/`. The components of the control plane
have one go.mod in common, so that each package that they share is compiled once. Other programs
have their own, so that their dependencies are independent. From other modules only manifests are
read; these are pinned here by checksum.
"""

from dataclasses import dataclass
from pathlib import Path

GO_MODULES = Path(__file__).parent / "gomodules"
GIB = 1024**3

KUBERNETES_VERSION = "v1.36.4"
# Without these the server reports v0.0.0 as its version.
KUBERNETES_LDFLAGS = (
    f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
    " -X k8s.io/component-base/version.gitMajor=1"
    " -X k8s.io/component-base/version.gitMinor=36"
)


@dataclass(frozen=True, slots=True)
class Project:
    """A Go module in `gomodules/` from which binaries are built."""

    name: str
    disk_needed: int  # bytes for modules, compiled packages and binaries, with empty caches

    @property
    def folder(self) -> Path:
        """The folder of its go.mod."""
        return GO_MODULES / self.name


CONTROL_PLANE_PROJECT = Project("controlplane", disk_needed=5 * GIB)
KUEUE_PROJECT = Project("kueue", disk_needed=3 * GIB)
HELM_PROJECT = Project("helm", disk_needed=2 * GIB)
PROMETHEUS_PROJECT = Project("prometheus", disk_needed=2 * GIB)


@dataclass(frozen=True, slots=True)
class Binary:
    """A program and the Go package from which it is built."""

    name: str
    version: str
    project: Project
    package: str
    ldflags: str = ""
    tags: str = ""  # Go build tags


def _kubernetes(name: str) -> Binary:
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Binary(name, KUBERNETES_VERSION, CONTROL_PLANE_PROJECT, package, KUBERNETES_LDFLAGS)


ETCD = Binary("etcd", "v3.6.8", CONTROL_PLANE_PROJECT, "go.etcd.io/etcd/server/v3")
APISERVER = _kubernetes("kube-apiserver")
CONTROLLER_MANAGER = _kubernetes("kube-controller-manager")
SCHEDULER = _kubernetes("kube-scheduler")
KUBECTL = _kubernetes("kubectl")
JOBSET = Binary("jobset", "v0.12.0", CONTROL_PLANE_PROJECT, "sigs.k8s.io/jobset")
KWOK = Binary("kwok", "v0.8.0", CONTROL_PLANE_PROJECT, "sigs.k8s.io/kwok/cmd/kwok")

# Started only where tests need it: `make test` builds nothing of it.
KUEUE = Binary(
    "kueue",
    "v0.19.2",
    KUEUE_PROJECT,
    "sigs.k8s.io/kueue/cmd/kueue",
    "-X sigs.k8s.io/kueue/pkg/version.GitVersion=v0.19.2",
)

# Not parts of a control plane, but tools to install and monitor software on one.
HELM = Binary(
    "helm",
    "v4.3.1",
    HELM_PROJECT,
    "helm.sh/helm/v4/cmd/helm",
    "-X helm.sh/helm/v4/internal/version.version=v4.3.1",
)


def _prometheus(name: str) -> Binary:
    # The module version v0.315.0 is release 3.15.0. The configuration lists targets, so service
    # discovery is not compiled in.
    package = f"github.com/prometheus/prometheus/cmd/{name}"
    return Binary(name, "v0.315.0", PROMETHEUS_PROJECT, package, tags="remove_all_sd")


PROMETHEUS = _prometheus("prometheus")
PROMTOOL = _prometheus("promtool")

BINARIES = (
    *(ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER, KUBECTL, JOBSET, KWOK),
    *(HELM, PROMETHEUS, PROMTOOL),
)


@dataclass(frozen=True, slots=True)
class Manifests:
    """YAML files inside a Go module."""

    name: str
    module: str
    version: str
    checksum: str
    files: tuple[str, ...]  # or folders

    @property
    def crd_file(self) -> str:
        """The file that defines the project's kind."""
        return next(file for file in self.files if "/crd" in file)


JOBSET_MANIFESTS = Manifests(
    "jobset",
    "sigs.k8s.io/jobset",
    JOBSET.version,
    "h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ=",
    (
        "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
        "config/components/rbac/role.yaml",
        "config/components/webhook/manifests.yaml",
    ),
)
KWOK_MANIFESTS = Manifests(
    "kwok",
    "sigs.k8s.io/kwok",
    KWOK.version,
    "h1:OTIOTwgROqPMovcTwxICx2eYQ4AwLpSx5EpjbDKF4SQ=",
    (
        "kustomize/rbac/role.yaml",
        "kustomize/stage/node/fast/node-initialize.yaml",
        "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        "kustomize/stage/pod/fast/pod-ready.yaml",
        "kustomize/stage/pod/fast/pod-delete.yaml",
        "kustomize/stage/pod/general/pod-complete.yaml",
        "kustomize/stage/pod/chaos/pod-container-running-failed.yaml",
        "kustomize/stage/pod/chaos/pod-init-container-running-failed.yaml",
    ),
)
COSCHEDULING_MANIFESTS = Manifests(
    "coscheduling",
    "sigs.k8s.io/scheduler-plugins",
    "v0.34.7",
    "h1:GENSA4rKpCKBrPvNSo2AV2QHU7j3a6LT14kNlHhXfeg=",
    ("config/crd/bases/scheduling.x-k8s.io_podgroups.yaml",),
)
VOLCANO_MANIFESTS = Manifests(
    "volcano",
    "volcano.sh/volcano",
    "v1.15.1",
    "h1:M0iGzhy1dvod2GFy1QiyWdv1jmmNfHW4+2WoRU7CIAk=",
    ("config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml",),
)

MANIFESTS = (JOBSET_MANIFESTS, KWOK_MANIFESTS, COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS)
