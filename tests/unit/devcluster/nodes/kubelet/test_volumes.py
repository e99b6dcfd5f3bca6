"""Volumes of pods on process nodes, against an API server in memory."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

from kftrainer.devcluster.nodes.kubelet import volumes as module
from kftrainer.devcluster.nodes.kubelet.environment import ConfigError
from kftrainer.devcluster.nodes.kubelet.volumes import MountError, PodVolumes, path_of_claim
from kftrainer.devcluster.nodes.sandbox.protocol import Mount
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.transport import Response
from tests.support.fake_clock import FakeClock
from tests.support.node_pods import NODE, Object, config_map, container, pod, secret
from tests.support.object_server import ObjectServer

TEAM = "/api/v1/namespaces/team"


class Cluster:
    """Objects by path; requests of tokens are numbered and valid for an hour."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.tokens = 0
        self.is_down = False
        self.server = ObjectServer({})
        self.server.answer = self._answer
        self.clock = FakeClock()

    def put(self, *found: Object) -> None:
        for each in found:
            plural = f"{each['kind'].lower()}s"
            self.objects[f"{TEAM}/{plural}/{each['metadata']['name']}"] = each

    def _answer(self, method: str, path: str) -> Response:
        if self.is_down:
            raise TransportError("connection refused")
        if method == "POST" and path == f"{TEAM}/serviceaccounts/default/token":
            self.tokens += 1
            expires = self.clock.now().replace(hour=self.clock.now().hour + 1)
            status = {
                "token": f"token-{self.tokens}",
                "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            return Response(201, {}, orjson.dumps({"status": status}))
        if path in self.objects:
            return Response(200, {}, orjson.dumps(self.objects[path]))
        name = path.rpartition("/")[2]
        status = {"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": name}}
        return Response(404, {}, orjson.dumps(status))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def volumes(cluster: Cluster, tmp_path: Path) -> PodVolumes:
    return PodVolumes(tmp_path / "pod", Client(cluster.server), cluster.clock)


def mount(name: str, path: str = "/data", **fields: Any) -> Object:
    return {"name": name, "mountPath": path, **fields}


def pod_with(*found: Object, mounts: list[Object] | None = None) -> Object:
    """A pod whose container mounts all of these volumes."""
    mounts = mounts or [mount(each["name"], f"/{each['name']}") for each in found]
    return pod(container(volumeMounts=mounts), volumes=[*found])


def mounted(volumes: PodVolumes, of: Object, env: dict[str, str] | None = None) -> list[Mount]:
    return volumes.mounts(of, of["spec"]["containers"][0], env or {})


def content(volumes: PodVolumes, of: Object, file: str) -> str:
    source = mounted(volumes, of)[0].source
    assert source is not None
    return Path(source, file).read_text()


async def test_empty_dir_is_a_shared_writable_folder(volumes: PodVolumes, tmp_path: Path) -> None:
    of = pod_with({"name": "a", "emptyDir": {"medium": "Memory"}}, {"name": "b"})
    await volumes.prepare(of)
    assert mounted(volumes, of) == [
        Mount("/a", str(tmp_path / "pod" / "a")),
        Mount("/b", str(tmp_path / "pod" / "b")),
    ]
    assert stat.S_IMODE((tmp_path / "pod" / "a").stat().st_mode) == 0o777


async def test_repeated_preparation_keeps_the_content(volumes: PodVolumes, tmp_path: Path) -> None:
    of = pod_with({"name": "a", "emptyDir": {}})
    await volumes.prepare(of)
    (tmp_path / "pod" / "a" / "file").touch()
    await volumes.prepare(of)
    assert (tmp_path / "pod" / "a" / "file").exists()


async def test_volumes_that_no_container_mounts_are_not_created(volumes: PodVolumes) -> None:
    of = pod(container(), volumes=[{"name": "a", "nfs": {"server": "s", "path": "/"}}])
    await volumes.prepare(of)
    assert mounted(volumes, of) == []


async def test_config_map_and_secret_are_read_only_files(
    volumes: PodVolumes, cluster: Cluster
) -> None:
    cluster.put(config_map("c", a="1"), secret("s", key=b"\xff"))
    of = pod_with(
        {"name": "a", "configMap": {"name": "c", "defaultMode": 0o600}},
        {"name": "b", "secret": {"secretName": "s", "defaultMode": 0}},
    )
    await volumes.prepare(of)
    first, second = (Path(each.source or "") for each in mounted(volumes, of))
    assert [each.read_only for each in mounted(volumes, of)] == [True, True]
    assert ((first / "a").read_bytes(), (second / "key").read_bytes()) == (b"1", b"\xff")
    assert stat.S_IMODE((first / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE((second / "key").stat().st_mode) == 0


async def test_projected_volume_merges_its_sources(volumes: PodVolumes, cluster: Cluster) -> None:
    cluster.put(config_map("ca", ca="certificate"), secret("s", key=b"1"))
    cluster.objects["/api/v1/nodes/process-0"] = NODE
    fields = [
        {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
        {
            "path": "cpu",
            "resourceFieldRef": {"containerName": "node", "resource": "limits.cpu"},
        },
    ]
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "ca", "items": [{"key": "ca", "path": "ca.crt"}]}},
        {"secret": {"name": "s", "items": [{"key": "key", "path": "d/key"}]}},
        {"downwardAPI": {"items": fields}},
    ]
    of = pod_with({"name": "a", "projected": {"sources": sources}})
    await volumes.prepare(of)
    files = ("token", "ca.crt", "d/key", "namespace", "cpu")
    assert [content(volumes, of, each) for each in files] == [
        "token-1",
        "certificate",
        "1",
        "team",
        "8",
    ]
    assert cluster.server.bodies[0]["spec"] == {
        "audiences": [],
        "expirationSeconds": 3607,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "trainer", "uid": "pod-uid"},
    }


TOKEN = {
    "name": "a",
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
}


async def test_token_is_renewed_after_most_of_its_lifetime(
    volumes: PodVolumes, cluster: Cluster
) -> None:
    of = pod_with(TOKEN)
    await volumes.prepare(of)
    await cluster.clock.advance(47 * 60)
    await volumes.refresh(of)
    assert content(volumes, of, "token") == "token-1"
    await cluster.clock.advance(60)
    await volumes.refresh(of)
    assert content(volumes, of, "token") == "token-2"


async def test_token_is_used_until_it_expires_if_it_cannot_be_renewed(
    volumes: PodVolumes, cluster: Cluster
) -> None:
    of = pod_with(TOKEN)
    await volumes.prepare(of)
    cluster.is_down = True
    await cluster.clock.advance(59 * 60)
    await volumes.refresh(of)
    await cluster.clock.advance(60)
    with pytest.raises(MountError, match="failed to fetch token: connection refused"):
        await volumes.refresh(of)


async def test_refresh_updates_files_from_the_api_and_the_pod(
    volumes: PodVolumes, cluster: Cluster
) -> None:
    optional = {"name": "b", "configMap": {"name": "later", "optional": True}}
    items = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    of = pod_with(
        {"name": "a", "configMap": {"name": "c"}},
        optional,
        {"name": "d", "downwardAPI": {"items": items}},
    )
    cluster.put(config_map("c", a="1"))
    await volumes.prepare(of)
    cluster.put(config_map("c", a="2"), config_map("later", x="3"))
    of["metadata"]["labels"] = {"new": "4"}
    await volumes.refresh(of)
    folders = [Path(each.source or "") for each in mounted(volumes, of)]
    found = [Path(folders[0], "a"), Path(folders[1], "x"), Path(folders[2], "labels")]
    assert [each.read_text() for each in found] == ["2", "3", 'new="4"']


async def test_refresh_updates_the_other_volumes_if_one_fails(
    volumes: PodVolumes, cluster: Cluster
) -> None:
    of = pod_with(
        {"name": "a", "configMap": {"name": "gone"}}, {"name": "b", "configMap": {"name": "c"}}
    )
    cluster.put(config_map("gone", a="1"), config_map("c", a="1"))
    await volumes.prepare(of)
    del cluster.objects[f"{TEAM}/configmaps/gone"]
    cluster.put(config_map("c", a="2"))
    failed = 'MountVolume.SetUp failed for volume "a" : configmap "gone" not found'
    with pytest.raises(MountError, match=f"^{failed}$"):
        await volumes.refresh(of)
    assert content(volumes, of, "a") == "1"
    assert Path(mounted(volumes, of)[1].source or "", "a").read_text() == "2"


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "x"}}, 'configmap "x" not found'),
        ({"secret": {"secretName": "x"}}, 'secret "x" not found'),
        ({"nfs": {"server": "s"}}, "process nodes do not support volumes of type nfs"),
        (
            {"projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}},
            "process nodes do not support the projected source clusterTrustBundle",
        ),
        (
            {"hostPath": {"path": "/dev/null", "type": "Directory"}},
            "hostPath type check failed: /dev/null is not a directory",
        ),
        (
            {"persistentVolumeClaim": {"claimName": "x"}},
            "error processing PVC team/x: failed to fetch PVC from API server: "
            'persistentvolumeclaims "x" not found',
        ),
        (
            {"ephemeral": {}},
            "error processing PVC team/trainer-a: failed to fetch PVC from API server: "
            'persistentvolumeclaims "trainer-a" not found',
        ),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "../x"}}]}},
            "invalid path: must not contain '..': ../x",
        ),
    ],
)
async def test_volume_that_cannot_be_mounted_is_a_mount_error(
    volumes: PodVolumes, volume: Object, message: str
) -> None:
    of = pod_with({"name": "a", **volume})
    with pytest.raises(MountError) as raised:
        await volumes.prepare(of)
    assert str(raised.value) == f'MountVolume.SetUp failed for volume "a" : {message}'
    with pytest.raises(
        ConfigError, match=r'^cannot find volume "a" to mount into container "node"'
    ):
        mounted(volumes, of)


async def test_unreachable_api_server_is_a_mount_error(
    volumes: PodVolumes, cluster: Cluster
) -> None:
    cluster.is_down = True
    with pytest.raises(MountError, match="connection refused"):
        await volumes.prepare(pod_with({"name": "a", "configMap": {"name": "c"}}))


async def test_full_disk_is_a_mount_error(
    volumes: PodVolumes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/var/a")

    monkeypatch.setattr(module, "write_files", full)
    cluster.put(config_map("c", a="1"))
    failed = r'MountVolume.SetUp failed for volume "a" : the disk is full \(/var/a\)'
    with pytest.raises(MountError, match=f"^{failed}$"):
        await volumes.prepare(pod_with({"name": "a", "configMap": {"name": "c"}}))


def claim(**fields: Any) -> Object:
    return {
        "metadata": {"name": "c", "namespace": "team", "uid": "claim-uid", **fields},
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"},
    }


def persistent_volume(**spec: Any) -> Object:
    return {"metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "claim-uid"}, **spec}}


@pytest.mark.parametrize("kind", ["hostPath", "local"])
async def test_claim_is_the_folder_of_its_volume(
    volumes: PodVolumes, cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    cluster.objects[f"{TEAM}/persistentvolumeclaims/c"] = claim()
    cluster.objects["/api/v1/persistentvolumes/pv"] = persistent_volume(
        **{kind: {"path": str(tmp_path)}}
    )
    of = pod_with({"name": "a", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}})
    await volumes.prepare(of)
    assert mounted(volumes, of) == [Mount("/a", str(tmp_path), read_only=True)]
    volumes.remove()
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("found", "bound_to", "message"),
    [
        (claim(deletionTimestamp="now"), None, "PVC is being deleted"),
        ({**claim(), "status": {"phase": "Pending"}}, None, "PVC is not bound"),
        ({**claim(), "spec": {}}, None, "PVC has empty pvc.Spec.VolumeName"),
        (claim(), None, 'failed to fetch PV pv from API server: persistentvolumes "pv" not found'),
        (
            claim(),
            persistent_volume(claimRef={"uid": "other"}),
            "found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID "
            "claim-uid",
        ),
        (
            claim(),
            persistent_volume(volumeMode="Block", local={"path": "/dev"}),
            "process nodes do not support block devices as volumes",
        ),
        (
            claim(),
            persistent_volume(csi={"driver": "d"}),
            "process nodes support PersistentVolumes of the types hostPath and local only",
        ),
    ],
)
def test_claim_that_is_not_usable_is_an_error(
    found: Object, bound_to: Object | None, message: str
) -> None:
    with pytest.raises(module.InputError) as raised:
        path_of_claim(pod(), "c", found, bound_to)
    assert str(raised.value) == f"error processing PVC team/c: {message}"


def test_claim_that_is_deleted_but_protected_is_usable(tmp_path: Path) -> None:
    found = claim(deletionTimestamp="now", finalizers=["kubernetes.io/pvc-protection"])
    bound_to = persistent_volume(hostPath={"path": str(tmp_path)})
    assert path_of_claim(pod(), "c", found, bound_to) == tmp_path


def test_ephemeral_claim_must_be_owned_by_the_pod(tmp_path: Path) -> None:
    bound_to = persistent_volume(hostPath={"path": str(tmp_path)})
    owned = claim(ownerReferences=[{"uid": "pod-uid", "controller": True}])
    assert path_of_claim(pod(), "c", owned, bound_to, is_ephemeral=True) == tmp_path
    message = r"^PVC team/c was not created for pod team/trainer \(pod is not owner\)$"
    with pytest.raises(module.InputError, match=message):
        path_of_claim(pod(), "c", claim(), bound_to, is_ephemeral=True)


async def test_mounts_are_ordered_by_depth_and_may_be_read_only(volumes: PodVolumes) -> None:
    mounts = [mount("a", "/x/y"), mount("b", "/x", readOnly=True), mount("a", "relative/")]
    of = pod_with({"name": "a"}, {"name": "b"}, mounts=mounts)
    await volumes.prepare(of)
    found = [(each.target, each.read_only) for each in mounted(volumes, of)]
    assert found == [("/x", True), ("/relative", False), ("/x/y", False)]


async def test_sub_paths_are_created_and_expanded(volumes: PodVolumes, tmp_path: Path) -> None:
    mounts = [mount("a", "/1", subPath="x/y"), mount("a", "/2", subPathExpr="logs/$(POD)")]
    of = pod_with({"name": "a"}, mounts=mounts)
    await volumes.prepare(of)
    assert [each.source for each in mounted(volumes, of, {"POD": "trainer"})] == [
        str(tmp_path / "pod" / "a" / "x" / "y"),
        str(tmp_path / "pod" / "a" / "logs" / "trainer"),
    ]
    assert (tmp_path / "pod" / "a" / "logs" / "trainer").is_dir()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subPath": "/etc"}, "error SubPath `/etc` must not be an absolute path"),
        ({"subPath": "a/../.."}, "unable to provision SubPath `a/../..`: must not contain '..'"),
        ({"subPathExpr": "$(UP)"}, "unable to provision SubPath `..`: must not contain '..'"),
        ({"subPathExpr": "$(NONE)"}, "missing value for NONE"),
        (
            {"subPath": "link"},
            'failed to prepare subPath for volumeMount "a" of container "node": '
            "a symbolic link leads out of the volume",
        ),
    ],
)
async def test_sub_path_that_leaves_the_volume_is_a_config_error(
    volumes: PodVolumes, tmp_path: Path, fields: Object, message: str
) -> None:
    of = pod_with({"name": "a"}, mounts=[mount("a", **fields)])
    await volumes.prepare(of)
    (tmp_path / "pod" / "a" / "link").symlink_to("/etc")
    with pytest.raises(ConfigError) as raised:
        mounted(volumes, of, {"UP": ".."})
    assert str(raised.value) == message


async def test_remove_deletes_the_folder_and_not_host_paths(
    volumes: PodVolumes, tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    of = pod_with({"name": "a"}, {"name": "h", "hostPath": {"path": str(tmp_path / "host")}})
    await volumes.prepare(of)
    (tmp_path / "pod" / "a" / "link").symlink_to(tmp_path / "host")
    volumes.remove()
    assert [entry.name for entry in tmp_path.iterdir()] == ["host"]
