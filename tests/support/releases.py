"""Helm releases on a real API server, with the programs of their pods as processes.

Pods of fake nodes run nothing. So what a chart's pod would run is run here: with the arguments of
its container, the ConfigMaps and Secrets that it mounts in folders, and the token of its
ServiceAccount.
"""

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kftrainer.devcluster.artifacts.manifests import Loader
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from tests.support.helm import IMAGE, merged
from tests.support.managers import KFTRAINER
from tests.support.processes import ran

CHART = Path(__file__).parents[2] / "charts" / "kftrainer"
NAME, NAMESPACE = "kubeflow-trainer", "kubeflow-system"
TOKEN_SECONDS = 3600


class HelmError(AssertionError):
    """helm failed."""


class Release:
    """The operator's Helm release in a cluster."""

    def __init__(self, helm: Path, plane: ControlPlane, home: Path) -> None:
        self._argv = (str(helm), f"--kubeconfig={plane.kubeconfig}", f"--namespace={NAMESPACE}")
        self._environment = {**os.environ, "HOME": str(home)}
        self._home = home

    async def __call__(self, *arguments: str | Path) -> str:
        """What helm prints; it must succeed."""
        argv = (*self._argv, *map(str, arguments))
        helm = await ran(argv, self._environment)
        if helm.code:
            raise HelmError(f"helm {' '.join(map(str, arguments))}: {helm.error_output}")
        return helm.printed

    async def install(
        self, chart: Path = CHART, *flags: str, values: Mapping[str, Any] | None = None
    ) -> str:
        """Install the chart."""
        given = self._values(chart, values)
        return await self("install", NAME, chart, "--create-namespace", *given, *flags)

    async def upgrade(
        self, chart: Path = CHART, *flags: str, values: Mapping[str, Any] | None = None
    ) -> str:
        """Upgrade to the chart."""
        return await self("upgrade", NAME, chart, *self._values(chart, values), *flags)

    async def uninstall(self, *flags: str) -> str:
        """Uninstall the release, and wait until what belongs to it is gone."""
        return await self("uninstall", NAME, "--wait", *flags)

    def _values(self, chart: Path, values: Mapping[str, Any] | None) -> Sequence[str]:
        file = self._home / "values.yaml"
        name = yaml.safe_load((chart / "Chart.yaml").read_text())["name"]
        image = IMAGE if name == CHART.name else {}
        file.write_text(yaml.safe_dump(merged(image, values or {})))
        return ("--values", str(file))

    async def objects(self, part: str = "manifest") -> list[Object]:
        """What the release has installed, or its `hooks`, as they were rendered."""
        text = await self("get", part, NAME)
        return [each for each in yaml.load_all(text, Loader=Loader) if each]

    async def records(self, api: ApiClient) -> Iterator[Object]:
        """The Secrets in which helm keeps the revisions of the release."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        found = (await api.get(path))["items"]
        return (each for each in found if each["type"] == "helm.sh/release.v1")


def record_size(record: Object) -> int:
    """How large a release's record is in etcd, which takes no more than a MiB."""
    return len(base64.b64decode(record["data"]["release"]))


class PodProgram:
    """The program of a pod, to be run as a process beside the cluster."""

    def __init__(self, plane: ControlPlane, api: ApiClient, home: Path) -> None:
        self._plane = plane
        self._api = api
        self._home = home

    async def argv(self, pod: Object, *flags: str) -> tuple[str, ...]:
        """The command line of the pod's container, run as the pod's ServiceAccount."""
        [container] = pod["containers"]
        assert "command" not in container, "the image sets the command"
        places = await self._mounted(pod, container)
        arguments = [_replaced(each, places) for each in container["args"]]
        kubeconfig = await self.kubeconfig(pod["serviceAccountName"])
        return (*KFTRAINER, *arguments, "--kubeconfig", str(kubeconfig), *flags)

    async def _mounted(self, pod: Object, container: Object) -> Mapping[str, Path]:
        """The live ConfigMaps and Secrets as folders, by where the container has them.

        Files of ConfigMaps name files of Secrets by the folders that are really there.
        """
        volumes = {each["name"]: each for each in pod.get("volumes", ())}
        mounts = {
            each["mountPath"]: volumes[each["name"]] for each in container.get("volumeMounts", ())
        }
        places = {
            path: await self._folder("secrets", volume["secret"]["secretName"])
            for path, volume in mounts.items()
            if "secret" in volume
        }
        return places | {
            path: await self._folder("configmaps", volume["configMap"]["name"], places)
            for path, volume in mounts.items()
            if "configMap" in volume
        }

    async def _folder(
        self, plural: str, name: str, places: Mapping[str, Path] | None = None
    ) -> Path:
        found = await self._api.get(f"/api/v1/namespaces/{NAMESPACE}/{plural}/{name}")
        folder = self._home / plural / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
        for key, text in found.get("data", {}).items():
            content = base64.b64decode(text).decode() if plural == "secrets" else text
            (folder / key).write_text(_replaced(content, places or {}))
        return folder

    async def kubeconfig(self, account: str, namespace: str = NAMESPACE) -> Path:
        """A kubeconfig with nothing but a token of the ServiceAccount."""
        file = self._home / f"{namespace}-{account}.yaml"
        user = {"token": await token(self._api, account, namespace)}
        cluster = {
            "server": self._plane.url,
            "certificate-authority": str(self._plane.certificate_authority),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": account, "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": account}}],
            "current-context": "it",
        }
        file.write_text(json.dumps(document))
        return file


async def token(api: ApiClient, account: str, namespace: str = NAMESPACE) -> str:
    """A token as the kubelet requests it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    }
    answer = await api.request("POST", path, body=body)
    issued: str = answer["status"]["token"]
    return issued


def user_of(account: str, namespace: str = NAMESPACE) -> str:
    """The ServiceAccount's name as a user."""
    return f"system:serviceaccount:{namespace}:{account}"


def _replaced(argument: str, places: Mapping[str, Path]) -> str:
    """The argument with the folders that are really there."""
    for mounted, folder in places.items():
        argument = argument.replace(mounted, str(folder))
    return argument
