"""Decisions of the provisioner of folders."""

from pathlib import Path
from typing import Any

import pytest

from kftrainer.devcluster.nodes.kubelet.storage import (
    PROVISIONED_BY,
    PROVISIONER,
    PROVISIONER_ANNOTATIONS,
    folder_of,
    is_ours,
    is_reclaimable,
    refusal,
    volume_for,
)
from tests.support.node_pods import Object

ROOT = Path("/root-of-volumes")


def claim(*, provisioner: str = PROVISIONER, name: str = "c", **spec: Any) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": "u",
            "annotations": {PROVISIONER_ANNOTATIONS[0]: provisioner},
        },
        "spec": {
            "storageClassName": "local-folder",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
    }


def test_only_unbound_claims_of_this_provisioner_are_provisioned() -> None:
    deleted = claim()
    deleted["metadata"]["deletionTimestamp"] = "now"
    without = claim()
    del without["metadata"]["annotations"]
    found = [claim(), claim(provisioner="other"), claim(volumeName="pv"), deleted, without]
    assert [is_ours(each) for each in found] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("spec", "is_refused"),
    [
        ({}, False),
        ({"volumeMode": "Filesystem"}, False),
        ({"volumeMode": "Block"}, True),
        ({"selector": {"matchLabels": {"a": "b"}}}, True),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}, True),
    ],
)
def test_claims_with_unsupported_fields_are_refused(spec: dict[str, Any], is_refused: bool) -> None:
    assert (refusal(claim(**spec)) is not None) == is_refused


def test_volume_is_reserved_for_the_claim() -> None:
    storage_class = {"reclaimPolicy": "Retain"}
    assert volume_for(claim(), storage_class, ROOT) == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pvc-u", "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "storageClassName": "local-folder",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/root-of-volumes/pvc-u", "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "team",
                "name": "c",
                "uid": "u",
            },
        },
    }


def volume(
    phase: str = "Released", by: str = PROVISIONER, policy: str = "Delete", path: str = ""
) -> Object:
    return {
        "metadata": {"name": "pvc-u", "annotations": {PROVISIONED_BY: by}},
        "spec": {
            "persistentVolumeReclaimPolicy": policy,
            "hostPath": {"path": path or str(ROOT / "pvc-u")},
        },
        "status": {"phase": phase},
    }


def test_only_released_volumes_of_this_provisioner_are_reclaimed() -> None:
    found = [volume(), volume("Bound"), volume(by="other"), volume(policy="Retain")]
    assert [is_reclaimable(each) for each in found] == [True, False, False, False]


@pytest.mark.parametrize(
    "path", ["/", "/root-of-volumes", "/root-of-volumes/pvc-v", "/root-of-volumes/../etc", "/etc"]
)
def test_other_folders_are_not_those_of_the_volume(path: str) -> None:
    assert folder_of(volume(), ROOT) == ROOT / "pvc-u"
    assert folder_of(volume(path=path), ROOT) is None


def test_folder_that_is_a_symbolic_link_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "pvc-u").symlink_to("/etc")
    assert folder_of(volume(path=str(tmp_path / "pvc-u")), tmp_path) is None
