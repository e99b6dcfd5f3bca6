"""Every verb, against the real API server."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NamespaceTerminatingError,
    NotFoundError,
)
from kftrainer.kube.client.ratelimit import RateLimiter
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, ObjectKey, key_of
from tests.integration.kube.kinds import CONFIG_MAPS, NAMESPACES, TRAIN_JOBS, config_map, resource
from tests.support.fake_clock import FakeClock
from tests.support.objects import train_job

CONDITION = {
    "type": "Complete",
    "status": "True",
    "reason": "AllJobsCompleted",
    "message": "",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


@pytest.fixture
def key(namespace: str) -> ObjectKey:
    return ObjectKey(namespace, "settings")


async def create_train_job(client: Client, namespace: str) -> Manifest:
    manifest = train_job()
    manifest["metadata"]["namespace"] = namespace
    return await client.create(TRAIN_JOBS, manifest)


async def test_created_object_can_be_read(client: Client, key: ObjectKey) -> None:
    created = await client.create(CONFIG_MAPS, config_map(key.namespace, color="red"))
    assert await client.get(CONFIG_MAPS, key) == created
    assert created["data"] == {"color": "red"}


async def test_name_can_be_generated_by_the_server(client: Client, namespace: str) -> None:
    manifest = config_map(namespace)
    manifest["metadata"] = {"namespace": namespace, "generateName": "made-"}
    created = await client.create(CONFIG_MAPS, manifest)
    assert created["metadata"]["name"].startswith("made-")


async def test_an_object_of_the_cluster_has_no_namespace(client: Client, namespace: str) -> None:
    found = await client.get(NAMESPACES, ObjectKey("", namespace))
    assert key_of(found) == ObjectKey("", namespace)


async def test_creating_an_object_twice_is_an_error(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(namespace))
    with pytest.raises(AlreadyExistsError, match="already exists"):
        await client.create(CONFIG_MAPS, config_map(namespace))


async def test_missing_object_is_not_found(client: Client, key: ObjectKey) -> None:
    with pytest.raises(NotFoundError) as raised:
        await client.get(CONFIG_MAPS, key)
    assert (raised.value.status, raised.value.reason) == (404, "NotFound")


async def test_a_kind_that_is_not_served_is_not_found(client: Client, key: ObjectKey) -> None:
    unknown = resource("Thing", "things", group="nowhere.example")
    with pytest.raises(NotFoundError, match="page not found"):
        await client.get(unknown, key)


async def test_an_update_replaces_the_object(client: Client, key: ObjectKey) -> None:
    created = await client.create(CONFIG_MAPS, config_map(key.namespace, color="red"))
    await client.update(CONFIG_MAPS, {**created, "data": {"size": "2"}})
    assert (await client.get(CONFIG_MAPS, key))["data"] == {"size": "2"}


async def test_an_update_of_an_old_version_is_a_conflict(client: Client, namespace: str) -> None:
    old = await client.create(CONFIG_MAPS, config_map(namespace, color="red"))
    await client.update(CONFIG_MAPS, {**old, "data": {"color": "blue"}})
    with pytest.raises(ConflictError, match="has been modified"):
        await client.update(CONFIG_MAPS, {**old, "data": {"color": "green"}})


async def test_apply_creates_changes_and_removes_owned_fields(
    client: Client, key: ObjectKey
) -> None:
    for wanted in ({"color": "red", "size": "2"}, {"color": "blue"}):
        manifest = config_map(key.namespace, **wanted)
        await client.apply(CONFIG_MAPS, manifest, field_manager="painter")
        assert (await client.get(CONFIG_MAPS, key))["data"] == wanted


async def test_applying_the_same_again_changes_nothing(client: Client, namespace: str) -> None:
    first, second = [
        await client.apply(CONFIG_MAPS, config_map(namespace, color="red"), field_manager="painter")
        for _ in range(2)
    ]
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_field_of_another_manager_is_taken_only_by_force(
    client: Client, key: ObjectKey
) -> None:
    await client.apply(CONFIG_MAPS, config_map(key.namespace, color="red"), field_manager="painter")
    other = config_map(key.namespace, color="blue")
    with pytest.raises(ConflictError) as raised:
        await client.apply(CONFIG_MAPS, other, field_manager="decorator", force=False)
    assert [(cause.reason, cause.field) for cause in raised.value.causes] == [
        ("FieldManagerConflict", ".data.color")
    ]
    await client.apply(CONFIG_MAPS, other, field_manager="decorator")
    assert (await client.get(CONFIG_MAPS, key))["data"] == {"color": "blue"}


async def test_applied_uid_prevents_recreation_of_a_deleted_object(
    client: Client, key: ObjectKey
) -> None:
    created = await client.create(CONFIG_MAPS, config_map(key.namespace))
    await client.delete(CONFIG_MAPS, key)
    manifest = config_map(key.namespace, color="red")
    manifest["metadata"]["uid"] = created["metadata"]["uid"]
    with pytest.raises(ApiError):
        await client.apply(CONFIG_MAPS, manifest, field_manager="painter")
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, key)


async def test_a_merge_patch_changes_and_removes(client: Client, key: ObjectKey) -> None:
    await client.create(CONFIG_MAPS, config_map(key.namespace, color="red", size="2"))
    patched = await client.merge_patch(CONFIG_MAPS, key, {"data": {"color": "blue", "size": None}})
    assert patched["data"] == {"color": "blue"}


async def test_json_patch_applies_its_operations_in_order(client: Client, key: ObjectKey) -> None:
    await client.create(CONFIG_MAPS, config_map(key.namespace, color="red"))
    steps = [
        {"op": "test", "path": "/data/color", "value": "red"},
        {"op": "replace", "path": "/data/color", "value": "blue"},
    ]
    assert (await client.json_patch(CONFIG_MAPS, key, steps))["data"] == {"color": "blue"}
    with pytest.raises(InvalidError):
        await client.json_patch(CONFIG_MAPS, key, steps)


async def test_writes_carry_the_name_of_their_field_manager(client: Client, key: ObjectKey) -> None:
    await client.create(CONFIG_MAPS, config_map(key.namespace, color="red"))
    await client.merge_patch(CONFIG_MAPS, key, {"data": {"size": "2"}}, field_manager="sizer")
    await client.json_patch(CONFIG_MAPS, key, [{"op": "add", "path": "/data/a", "value": "b"}])
    fields = (await client.get(CONFIG_MAPS, key))["metadata"]["managedFields"]
    assert {each["manager"] for each in fields} == {"kftrainer-tests", "sizer"}


async def test_deleted_object_is_removed(client: Client, key: ObjectKey) -> None:
    await client.create(CONFIG_MAPS, config_map(key.namespace))
    await client.delete(CONFIG_MAPS, key)
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, key)


async def test_a_delete_that_means_another_object_is_a_conflict(
    client: Client, key: ObjectKey
) -> None:
    created = await client.create(CONFIG_MAPS, config_map(key.namespace))
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, key, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, key, resource_version="1")
    metadata = created["metadata"]
    await client.delete(
        CONFIG_MAPS, key, uid=metadata["uid"], resource_version=metadata["resourceVersion"]
    )


async def test_the_propagation_of_a_delete_reaches_the_server(
    client: Client, key: ObjectKey
) -> None:
    await client.create(CONFIG_MAPS, config_map(key.namespace))
    await client.delete(CONFIG_MAPS, key, propagation="Foreground")
    left = await client.get(CONFIG_MAPS, key)  # nothing here ends foreground deletion
    assert left["metadata"]["finalizers"] == ["foregroundDeletion"]


async def test_dry_run_changes_nothing(client: Client, key: ObjectKey) -> None:
    red, blue = (config_map(key.namespace, color=color) for color in ("red", "blue"))
    assert (await client.create(CONFIG_MAPS, red, dry_run=True))["data"] == {"color": "red"}
    await client.apply(CONFIG_MAPS, red, field_manager="painter", dry_run=True)
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, key)

    created = await client.create(CONFIG_MAPS, red)
    step = {"op": "replace", "path": "/data/color", "value": "blue"}
    answers = [
        await client.update(CONFIG_MAPS, blue, dry_run=True),
        await client.apply(CONFIG_MAPS, blue, field_manager="painter", dry_run=True),
        await client.merge_patch(CONFIG_MAPS, key, {"data": {"color": "blue"}}, dry_run=True),
        await client.json_patch(CONFIG_MAPS, key, [step], dry_run=True),
    ]
    assert [answer["data"] for answer in answers] == [{"color": "blue"}] * 4
    await client.delete(CONFIG_MAPS, key, dry_run=True)
    assert await client.get(CONFIG_MAPS, key) == created


async def test_the_status_of_a_trainjob_is_written_apart_from_the_rest(
    client: Client, namespace: str
) -> None:
    job = await create_train_job(client, namespace)
    key = key_of(job)
    written = {**job, "status": {"conditions": [CONDITION]}, "spec": {**job["spec"], "suspend": 1}}
    updated = await client.update(TRAIN_JOBS, written, subresource="status")
    assert updated["status"] == {"conditions": [CONDITION]}
    assert updated["spec"] == job["spec"]

    patched = await client.merge_patch(
        TRAIN_JOBS, key, {"status": {"conditions": []}}, subresource="status"
    )
    assert patched["status"]["conditions"] == []
    ignored = await client.merge_patch(TRAIN_JOBS, key, {"status": {"conditions": [CONDITION]}})
    assert ignored["status"]["conditions"] == []


async def test_the_status_of_a_trainjob_can_be_applied(client: Client, namespace: str) -> None:
    job = await create_train_job(client, namespace)
    names = {"name": "job", "namespace": namespace}
    intent = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "metadata": names,
        "status": {"conditions": [CONDITION]},
    }
    applied = await client.apply(
        TRAIN_JOBS, intent, field_manager="kftrainer-status", subresource="status"
    )
    assert applied["status"] == {"conditions": [CONDITION]}
    intent["metadata"] = {**names, "name": "missing"}
    with pytest.raises(NotFoundError):
        await client.apply(TRAIN_JOBS, intent, field_manager="x", subresource="status")


async def test_invalid_object_error_names_the_field(client: Client, namespace: str) -> None:
    manifest = train_job(trainer={"numNodes": 0})
    manifest["metadata"]["namespace"] = namespace
    with pytest.raises(InvalidError) as raised:
        await client.create(TRAIN_JOBS, manifest)
    assert "spec.trainer.numNodes" in {cause.field for cause in raised.value.causes}


async def test_invalid_request_is_a_bad_request(client: Client, namespace: str) -> None:
    with pytest.raises(BadRequestError):
        await client.create(CONFIG_MAPS, {**config_map(namespace), "data": "no mapping"})


async def test_user_without_permissions_is_forbidden(
    control_plane: ControlPlane, key: ObjectKey
) -> None:
    connection = await load_connection(control_plane.kubeconfig_for("nobody"))
    async with HttpTransport(connection, user_agent="kftrainer-tests/1") as transport:
        with pytest.raises(ForbiddenError, match='User "nobody" cannot get resource'):
            await Client(transport).get(CONFIG_MAPS, key)


async def test_creation_in_a_terminating_namespace_fails(client: Client, namespace: str) -> None:
    await client.delete(NAMESPACES, ObjectKey("", namespace))
    with pytest.raises(NamespaceTerminatingError):
        await client.create(CONFIG_MAPS, config_map(namespace))


@pytest.fixture
async def five(client: Client, namespace: str) -> list[str]:
    names = [f"settings-{n}" for n in range(5)]
    for name in names:
        manifest = config_map(namespace, name)
        manifest["metadata"]["labels"] = {"odd": str(int(name[-1]) % 2 == 1)}
        await client.create(CONFIG_MAPS, manifest)
    return names


async def test_list_pages_have_one_resource_version(
    client: Client, namespace: str, five: list[str]
) -> None:
    pages = []
    async for page in client.list_pages(CONFIG_MAPS, namespace=namespace, limit=2):
        pages.append(page)
        await client.create(CONFIG_MAPS, config_map(namespace, f"settings-later-{len(pages)}"))
    assert [[key_of(item).name for item in page.items] for page in pages] == [
        five[:2],
        five[2:4],
        five[4:],
    ]
    assert len({page.resource_version for page in pages}) == 1


async def test_a_list_is_all_its_pages(client: Client, namespace: str, five: list[str]) -> None:
    whole = await client.list(CONFIG_MAPS, namespace=namespace, limit=2)
    assert [key_of(item).name for item in whole.items] == five
    # Their versions may differ: every write to the server counts, and it writes by itself as well.
    assert whole.items == (await client.list(CONFIG_MAPS, namespace=namespace)).items


async def test_list_items_have_api_version_and_kind(
    client: Client, namespace: str, five: list[str]
) -> None:
    listed = await client.list(CONFIG_MAPS, namespace=namespace)
    assert listed.items[0] == await client.get(CONFIG_MAPS, ObjectKey(namespace, five[0]))


async def test_an_empty_list_has_a_resource_version(client: Client, namespace: str) -> None:
    listed = await client.list(CONFIG_MAPS, namespace=namespace)
    assert listed.items == []
    assert int(listed.resource_version) > 0


async def test_selectors_filter_lists(client: Client, namespace: str, five: list[str]) -> None:
    paged = await client.list(CONFIG_MAPS, namespace=namespace, label_selector="odd=True", limit=1)
    assert [key_of(item).name for item in paged.items] == [five[1], five[3]]
    one = await client.list(
        CONFIG_MAPS, namespace=namespace, field_selector=f"metadata.name={five[2]}"
    )
    assert [key_of(item).name for item in one.items] == [five[2]]


async def test_server_warning_is_logged_once(client: Client, key: ObjectKey) -> None:
    with capture_logs() as logs:
        for _ in range(2):
            manifest = {**config_map(key.namespace), "colour": "red", "size": 2}
            await client.create(CONFIG_MAPS, manifest, dry_run=True)
    assert [(each["event"], each["log_level"], each["text"]) for each in logs] == [
        ("api_warning", "warning", 'unknown field "colour"'),
        ("api_warning", "warning", 'unknown field "size"'),
    ]


async def test_requests_beyond_the_burst_wait_for_their_turn_and_watches_do_not(
    transport: HttpTransport, namespace: str
) -> None:
    clock = FakeClock()
    limited = Client(transport, limiter=RateLimiter(qps=10, burst=2, clock=clock))
    done: list[int] = []

    async def read(number: int) -> None:
        await limited.get(NAMESPACES, ObjectKey("", namespace))
        done.append(number)

    def has_count(count: int) -> Callable[[], Awaitable[bool]]:
        async def are_done() -> bool:
            return len(done) == count

        return are_done

    async with asyncio.TaskGroup() as readers:
        for number in range(4):
            readers.create_task(read(number))
        await until(has_count(2), within=30, what="two reads")
        assert clock.sleeping == pytest.approx([0.1, 0.2])
        async with limited.watch(CONFIG_MAPS, namespace=namespace, timeout_seconds=1):
            pass
        await clock.advance(0.1)
        await until(has_count(3), within=30, what="the third read")
        assert clock.sleeping == pytest.approx([0.2])
        await clock.advance(0.1)
    assert sorted(done) == [0, 1, 2, 3]
