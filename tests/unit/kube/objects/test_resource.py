from dataclasses import replace

import pytest

from kftrainer.kube.objects.resource import (
    Manifest,
    ObjectKey,
    Resource,
    controller_of,
    is_controlled_by,
    key_of,
    unstructured,
)

PODS: Resource[Manifest] = Resource(
    group="", version="v1", kind="Pod", plural="pods", namespaced=True, decode=unstructured
)
NODES: Resource[Manifest] = Resource(
    group="", version="v1", kind="Node", plural="nodes", namespaced=False, decode=unstructured
)
JOBS: Resource[Manifest] = Resource(
    group="batch", version="v1", kind="Job", plural="jobs", namespaced=True, decode=unstructured
)


@pytest.mark.parametrize(
    ("resource", "namespace", "path"),
    [
        (PODS, None, "/api/v1/pods"),
        (PODS, "team", "/api/v1/namespaces/team/pods"),
        (PODS, "", "/api/v1/namespaces//pods"),  # which there is not: it must not mean everywhere
        (NODES, None, "/api/v1/nodes"),
        (NODES, "team", "/api/v1/nodes"),
        (JOBS, "team", "/apis/batch/v1/namespaces/team/jobs"),
    ],
)
def test_where_objects_are_listed(
    resource: Resource[Manifest], namespace: str | None, path: str
) -> None:
    assert resource.collection_path(namespace) == path


def test_where_an_object_and_its_status_are() -> None:
    assert NODES.object_path(ObjectKey("", "one")) == "/api/v1/nodes/one"
    key = ObjectKey("team", "train")
    assert JOBS.object_path(key) == "/apis/batch/v1/namespaces/team/jobs/train"
    assert JOBS.object_path(key, "status") == "/apis/batch/v1/namespaces/team/jobs/train/status"


def test_how_a_kind_is_written() -> None:
    assert (PODS.api_version, JOBS.api_version) == ("v1", "batch/v1")
    assert (PODS.group_kind, JOBS.group_kind) == ("Pod", "Job.batch")


def test_the_key_of_an_object() -> None:
    assert str(key_of({"metadata": {"name": "train", "namespace": "team"}})) == "team/train"
    assert str(key_of({"metadata": {"name": "one"}})) == "one"


def test_a_kind_read_as_metadata_only_is_another_kind_at_the_same_place() -> None:
    manifest = {"metadata": {"name": "one"}}
    named = replace(JOBS, decode=lambda job: job["spec"]["name"])
    partial = named.only_metadata()
    assert partial == named.only_metadata() == JOBS.only_metadata()
    assert len({partial, named, JOBS}) == 3
    assert partial.collection_path("team") == named.collection_path("team")
    assert partial.decode(manifest) == manifest


def test_is_controlled_by_compares_the_uid_of_the_controller() -> None:
    owners = [{"uid": "owner"}, {"uid": "controller", "controller": True}]
    metadata = {"ownerReferences": owners}
    found = {uid: is_controlled_by(metadata, uid) for uid in ("owner", "controller", "other")}
    assert found == {"owner": False, "controller": True, "other": False}
    assert not is_controlled_by({}, "controller")


def test_controller_of_returns_the_reference_of_the_controller() -> None:
    controller = {"uid": "controller", "controller": True}
    assert controller_of({"ownerReferences": [{"uid": "owner"}, controller]}) == controller
    assert controller_of({"ownerReferences": [{"uid": "owner", "controller": False}]}) is None
    assert controller_of({"ownerReferences": None}) is None
    assert controller_of({}) is None


@pytest.mark.parametrize(
    ("reference", "is_job"),
    [
        ({"apiVersion": "batch/v1", "kind": "Job"}, True),
        ({"apiVersion": "batch/v1beta1", "kind": "Job"}, True),
        ({"apiVersion": "batch.example.com/v1", "kind": "Job"}, False),
        ({"apiVersion": "v1", "kind": "Job"}, False),
        ({"apiVersion": "batch/v1", "kind": "CronJob"}, False),
        ({"kind": "Job"}, False),
        ({}, False),
    ],
)
def test_is_referred_to_by_compares_group_and_kind(reference: Manifest, is_job: bool) -> None:
    assert JOBS.is_referred_to_by(reference) is is_job


def test_is_referred_to_by_compares_kinds_of_the_core_group() -> None:
    assert PODS.is_referred_to_by({"apiVersion": "v1", "kind": "Pod"})
    assert not PODS.is_referred_to_by({"apiVersion": "batch/v1", "kind": "Pod"})
