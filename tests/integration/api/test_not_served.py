"""Fields of other releases: rejected by name at every write, without the help of a webhook."""

from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from typing import Any

import orjson
import pytest
import pytest_asyncio

from kftrainer.api.schema.creation import creation_errors
from kftrainer.api.schema.offline import KINDS, schema_of
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.support.objects import COLLECTIONS, Object, runtime, train_job
from tests.support.other_releases import (
    FORBIDDEN,
    KUEUE_ADMISSION,
    KUEUE_ENTRY,
    SDK_PATCH,
    UNSERVED,
    Unserved,
    definitions,
    without_rejections,
)

MERGE = "application/merge-patch+json"
GROUP = "other-release.test"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STORED = f"/apis/{GROUP}/v1alpha1/namespaces/{{}}/{{}}"


async def merged(api: ApiClient, path: str, change: Object) -> Object:
    """The answer to a merge patch."""
    return await api.request("PATCH", path, body=change, content_type=MERGE)


def check_rejected(error: ApiError, case: Unserved) -> None:
    assert (error.status, error.reason) == (422, "Invalid")
    assert f"{case.path}: Forbidden: {case.named}" in str(error)


@pytest.mark.parametrize("case", UNSERVED, ids=str)
async def test_unserved_field_is_rejected_at_create_update_and_apply(
    api: ApiClient, namespace: str, case: Unserved
) -> None:
    document = case.document("other")
    collection = COLLECTIONS[case.kind].format(namespace)
    with pytest.raises(ApiError) as created:  # without strict validation, as the SDK sends it
        await api.request("POST", collection, body=document)
    check_rejected(created.value, case)

    plain = train_job("other") if case.kind == "TrainJob" else runtime("other", kind=case.kind)
    await api.request("POST", collection, body=plain)
    with pytest.raises(ApiError) as updated:
        await merged(api, f"{collection}/other", {"spec": case.spec})
    check_rejected(updated.value, case)

    with pytest.raises(ApiError) as applied:
        await api.apply({**document, "metadata": {"name": "fresh", "namespace": namespace}})
    check_rejected(applied.value, case)


@pytest.mark.parametrize("case", UNSERVED, ids=str)
def test_offline_validation_rejects_the_same_field(case: Unserved) -> None:
    [error] = creation_errors(case.document("other"))
    assert (error.path, error.type) == (case.path, FORBIDDEN)
    assert error.detail.startswith(case.named)


def test_every_unserved_field_of_the_schemas_is_tested() -> None:
    declared = {
        path.replace("[]", "[0]") for kind in KINDS for path in rejected_paths(schema_of(kind), "")
    }
    assert declared == {case.path for case in UNSERVED}


def rejected_paths(schema: Any, path: str) -> Iterator[str]:
    rules = schema.get("x-kubernetes-validations", ())
    if any(rule.get("reason") == FORBIDDEN for rule in rules):
        yield path
    for name, each in schema.get("properties", {}).items():
        yield from rejected_paths(each, f"{path}.{name}" if path else name)
    if isinstance(items := schema.get("items"), dict):
        yield from rejected_paths(items, f"{path}[]")


@pytest.mark.parametrize(
    "patches",
    [[], None, [KUEUE_ENTRY], [KUEUE_ADMISSION, SDK_PATCH]],
    ids=["none", "null", "empty entry of Kueue", "of Kueue and the SDK"],
)
async def test_runtime_patches_are_stored_unchanged(
    api: ApiClient, namespace: str, patches: Any
) -> None:
    job = train_job(runtimePatches=patches)
    stored = await api.request("POST", COLLECTIONS["TrainJob"].format(namespace), body=job)
    assert stored["spec"].get("runtimePatches") == patches


async def test_progress_in_the_status_is_kept(api: ApiClient, namespace: str) -> None:
    """MultiKueue copies the whole status of a TrainJob that another cluster runs."""
    collection = COLLECTIONS["TrainJob"].format(namespace)
    job = await api.request("POST", collection, body=train_job())
    progress = {
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 600,
        "metrics": [{"name": "loss", "value": "0.23"}],
        "lastUpdatedTime": "2026-01-01T00:00:00Z",
    }
    path = f"{collection}/job/status"
    written = await api.request("PUT", path, body={**job, "status": {"trainerStatus": progress}})
    assert written["status"] == {"trainerStatus": progress}
    written["status"] = {"trainerStatus": {"progressPercentage": 45}}
    with pytest.raises(ApiError, match="lastUpdatedTime is required when trainerStatus is present"):
        await api.request("PUT", path, body=written)


# Objects that another release has stored: a copy of the CRDs stands in for it, at first without
# the rules that reject its fields.


def copied(document: Object, *, with_rules: bool) -> Object:
    """The CRD in a group of its own."""
    crd: Object = deepcopy(document)
    names = crd["spec"]["names"]
    crd["metadata"] = {"name": f"{names['plural']}.{GROUP}"}
    crd["spec"]["group"] = GROUP
    del names["shortNames"], names["categories"]
    return crd if with_rules else without_rejections(crd)


@pytest_asyncio.fixture
async def stored_elsewhere(api: ApiClient, namespace: str) -> AsyncIterator[dict[str, Object]]:
    """An object for each field, stored before the rules were there; by their names."""
    for crd in definitions():
        await api.apply_crd(copied(crd, with_rules=False))
    stored: dict[str, Object] = {}
    for index, case in enumerate(UNSERVED):
        document = case.document(f"stored-{index}") | {"apiVersion": f"{GROUP}/v1alpha1"}
        document["metadata"]["finalizers"] = ["acme.io/keep"]
        collection = STORED.format(namespace, KINDS[case.kind].plural)
        stored[str(case)] = await api.request("POST", collection, body=document)
    for crd in definitions():
        await api.apply_crd(copied(crd, with_rules=True))
        if any(case.kind == crd["spec"]["names"]["kind"] for case in UNSERVED):
            await _wait_until_enforced(api, namespace, crd)
    yield stored
    for crd in definitions():
        plural = crd["spec"]["names"]["plural"]
        for each in (await api.get(STORED.format(namespace, plural)))["items"]:
            if each["metadata"].get("finalizers"):
                await _free(api, namespace, plural, each["metadata"]["name"])
        await api.delete(f"{CRDS}/{plural}.{GROUP}")


async def _wait_until_enforced(api: ApiClient, namespace: str, crd: Object) -> None:
    """Return when the API server validates by the rules."""
    kind, plural = crd["spec"]["names"]["kind"], crd["spec"]["names"]["plural"]
    case = next(each for each in UNSERVED if each.kind == kind)
    probe = case.document("probe") | {"apiVersion": f"{GROUP}/v1alpha1"}

    async def rejects() -> bool:
        try:
            path = STORED.format(namespace, plural)
            await api.request("POST", path, query={"dryRun": "All"}, body=probe)
        except ApiError as error:
            return error.status == 422
        return False

    await until(rejects, within=30.0, what="the rules being enforced")


async def _free(api: ApiClient, namespace: str, plural: str, name: str) -> Object:
    path = f"{STORED.format(namespace, plural)}/{name}"
    return await merged(api, path, {"metadata": {"finalizers": None}})


async def test_stored_objects_can_be_labelled_and_deleted(
    api: ApiClient, namespace: str, stored_elsewhere: dict[str, Object]
) -> None:
    for case in UNSERVED:
        stored = stored_elsewhere[str(case)]
        plural, name = KINDS[case.kind].plural, stored["metadata"]["name"]
        path = f"{STORED.format(namespace, plural)}/{name}"
        changed = await merged(api, path, {"metadata": {"labels": {"a": "b"}}})
        assert changed["spec"] == stored["spec"]
        if (change := changed_value(case)) is not None:
            with pytest.raises(ApiError, match="is not supported"):
                await merged(api, path, {"spec": change})
        await api.delete(path)
        await _free(api, namespace, plural, name)
        assert await api.get_or_none(path) is None


def changed_value(case: Unserved) -> Object | None:
    """The spec of the case with another value of the field, if it can have another."""
    text = orjson.dumps(case.spec).decode()
    for before, after in (
        ('"maxNodes":4', '"maxNodes":5'),
        ('"numProcPerNode":2', '"numProcPerNode":3'),
    ):
        text = text.replace(before, after)
    changed: Object = orjson.loads(text)
    assert changed != case.spec or case.path.endswith((".jax", ".xgboost"))
    return changed if changed != case.spec else None
