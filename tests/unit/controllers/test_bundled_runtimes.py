"""Runtimes that ship with the operator are applied, deleted or not modified."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kftrainer.controllers.bundled_runtime_steps import (
    NOT_OURS,
    Apply,
    Delete,
    Leave,
    Step,
    bundled_runtime,
    is_bundled,
    next_step,
    replacement,
)
from kftrainer.controllers.bundled_runtimes import (
    IN_USE,
    PERHAPS_IN_USE,
    BundledRuntimesReconciler,
)
from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    NotFoundError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Result
from tests.support.fake_clock import FakeClock
from tests.support.objects import Object, runtime

if TYPE_CHECKING:
    from kftrainer.kube.client.client import Client
    from kftrainer.machinery.cache.cache import Cache

LABEL = "trainer.kubeflow.org/managed-by"
HASH = "trainer.kubeflow.org/shipped-hash"
DOCUMENT = runtime("torch", "ClusterTrainingRuntime")
TORCH = bundled_runtime(DOCUMENT)
KEY = ObjectKey("", "torch")
LATER = Result(requeue=True)


def existing(*, ours: bool = True, mark: str | None = TORCH.mark, going: bool = False) -> Object:
    """The metadata of a runtime in the cluster."""
    metadata: Object = {"name": "torch", "uid": "u", "resourceVersion": "7"}
    metadata["labels"] = {LABEL: "kftrainer"} if ours else {"team": "a"}
    metadata["annotations"] = {} if mark is None else {HASH: mark}
    return {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"} if going else metadata


MISSING = Apply(TORCH, "it does not exist")
CHANGED = Apply(TORCH, "its file has changed")
ADOPTED = Apply(TORCH, "another client created it and has labelled it for this manager")
FOREIGN = Leave("shipped_runtime_not_managed", NOT_OURS)


@pytest.mark.parametrize(
    ("wanted", "metadata", "step"),
    [
        (True, None, MISSING),
        (True, existing(), None),
        (True, existing(ours=False), None),
        (True, existing(mark="torch/other"), CHANGED),
        (True, existing(ours=False, mark="torch/other"), CHANGED),
        (True, existing(ours=False, mark=None), FOREIGN),
        (True, existing(ours=False, mark="torch-distributed/other"), FOREIGN),
        (True, existing(mark=None), ADOPTED),
        (True, existing(mark="torch-distributed/other"), ADOPTED),
        (True, existing(mark="torch/other", going=True), None),
        (True, existing(going=True), None),
        (False, None, None),
        (False, existing(), Delete("u", "7")),
        (False, existing(mark="torch/other"), Delete("u", "7")),
        (False, existing(mark="torch-distributed/other"), None),
        (False, existing(mark=None), None),
        (False, existing(going=True), None),
        (False, existing(ours=False), None),
        (False, existing(ours=False, mark=None), None),
    ],
)
def test_next_step(wanted: bool, metadata: Object | None, step: Step | None) -> None:
    seen = None if metadata is None else ObjectMeta.parse(metadata)
    assert next_step(TORCH if wanted else None, seen) == step
    kept = Leave("shipped_runtime_kept", "so") if isinstance(step, Delete) else step
    assert next_step(TORCH if wanted else None, seen, "so") == kept


def test_label_with_another_value_does_not_count() -> None:
    metadata = ObjectMeta.parse({**existing(), "labels": {LABEL: "acme"}})
    assert next_step(None, metadata) is None
    assert not is_bundled(metadata)
    assert is_bundled(ObjectMeta.parse(existing()))


def test_document_gets_label_and_hash_only() -> None:
    before = {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "annotations": {"a": "b"}}}
    defaulted = bundled_runtime(before)
    assert defaulted.manifest == {
        **before,
        "metadata": {
            "name": "torch",
            "labels": {"trainer.kubeflow.org/framework": "torch", LABEL: "kftrainer"},
            "annotations": {"a": "b", HASH: defaulted.mark},
        },
    }
    assert LABEL not in before["metadata"]["labels"], "objects that were read are not changed"


def test_hash_depends_on_content_and_not_on_notation() -> None:
    reordered = dict(reversed(DOCUMENT.items()))
    assert bundled_runtime(reordered).mark == TORCH.mark
    other = {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "labels": {"a": "b"}}}
    assert bundled_runtime(other).mark != TORCH.mark


class Cluster:
    """A client and a cache of one runtime."""

    def __init__(self, metadata: Object | None, error: KubeError | None = None) -> None:
        self.metadata = metadata
        self.error = error
        self.uncached: Object | None = None
        self.requests: list[str] = []
        self.used: set[str] = set()
        self.clock = FakeClock()
        self.registry = CollectorRegistry()

    def informer(self, _: Any) -> "Cluster":
        return self

    def cached_object(self, _: ObjectKey) -> "Cluster | None":
        return None if self.metadata is None else self

    def has_index(self, _: Any, _name: str, value: str) -> bool:
        return value in self.used

    async def get(self, _: Any, key: ObjectKey) -> Object:
        if self.live is None:
            raise NotFoundError(404, "NotFound", "")
        return {"metadata": self.live}

    @property
    def live(self) -> Object | None:
        """What the API server has, which the cache may not show yet."""
        return self.metadata if self.uncached is None else self.uncached

    async def create(self, _: Any, manifest: Object, *, field_manager: str) -> Object:
        return self._written(f"create {manifest['metadata']['name']}", field_manager)

    async def json_patch(
        self, _: Any, key: ObjectKey, operations: list[Object], *, field_manager: str
    ) -> Object:
        fields = {each["path"]: each["value"] for each in operations}
        version = fields["/metadata/resourceVersion"]
        return self._written(f"replace {key} {version}", field_manager)

    def _written(self, what: str, field_manager: str) -> Object:
        self._record_call(f"{what} as {field_manager}")
        return {"metadata": {"managedFields": [{"manager": "argocd"}, {"manager": field_manager}]}}

    async def delete(self, _: Any, key: ObjectKey, *, uid: str, resource_version: str) -> None:
        self._record_call(f"delete {key} {uid} {resource_version}")

    def _record_call(self, what: str) -> None:
        self.requests.append(what)
        if self.error is not None:
            raise self.error

    def reconciler(self, *, wanted: bool, watches_all: bool = True) -> BundledRuntimesReconciler:
        documents = {"torch": TORCH} if wanted else {}
        return BundledRuntimesReconciler(
            cast("Client", self),
            cast("Cache", self),
            documents,
            clock=self.clock,
            registry=self.registry,
            watches_all=watches_all,
        )

    def out_of_date(self) -> float | None:
        """The log entry about the runtime, if any."""
        name = "kftrainer_shipped_runtime_out_of_date"
        return self.registry.get_sample_value(name, {"runtime": "torch"})


async def test_writes_use_their_own_field_manager() -> None:
    absent, present = Cluster(None), Cluster(existing())
    assert await absent.reconciler(wanted=True).reconcile(KEY) == DONE
    assert absent.requests == ["create torch as kftrainer-runtimes"]
    outdated = Cluster(existing(mark="torch/other"))
    assert await outdated.reconciler(wanted=True).reconcile(KEY) == DONE
    assert outdated.requests == ["replace torch 7 as kftrainer-runtimes"]
    assert await present.reconciler(wanted=False).reconcile(KEY) == DONE
    assert present.requests == ["delete torch u 7"]


@pytest.mark.parametrize(
    "live",
    [existing(ours=False, mark=None), existing(going=True), existing()],
    ids=["theirs", "going", "done"],
)
async def test_live_runtime_that_the_cache_does_not_show_decides(live: Object) -> None:
    cluster = Cluster(None)
    cluster.uncached = live
    with capture_logs() as logged:
        assert await cluster.reconciler(wanted=True).reconcile(KEY) == DONE
    assert (cluster.requests, events(logged)) == ([], [])


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (None, AlreadyExistsError(409, "AlreadyExists", "")),
        (existing(mark="torch/other"), ConflictError(409, "Conflict", "")),
    ],
)
async def test_runtime_that_changes_while_it_is_written_is_retried(
    metadata: Object | None, error: KubeError
) -> None:
    cluster = Cluster(metadata, error)
    with capture_logs() as logged:
        assert await cluster.reconciler(wanted=True).reconcile(KEY) == LATER
    assert events(logged) == []


def managed(manager: str, **fields: list[str]) -> Object:
    """An entry of managedFields that owns keys of labels or annotations."""
    owned = {
        f"f:{field}": {".": {}, **{f"f:{key}": {} for key in keys}}
        for field, keys in fields.items()
    }
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:metadata": owned}}


def test_replacement_has_the_whole_spec_and_keeps_metadata_of_others() -> None:
    live = {
        "metadata": {
            **existing(mark="torch/other"),
            "labels": {LABEL: "kftrainer", "old": "1", "theirs": "1"},
            "annotations": {HASH: "torch/other", "note": "x", "dropped": "x"},
            "finalizers": ["a"],
            "managedFields": [
                managed("kftrainer-runtimes", labels=["old", LABEL], annotations=[HASH, "dropped"]),
                managed("helm", labels=["theirs"]),
                {"manager": "kftrainer-runtimes", "fieldsV1": {"f:spec": {}}},
                {"manager": "kftrainer-runtimes"},
            ],
        },
        "spec": {"template": {"spec": {"more": "of others"}}},
    }
    assert replacement(TORCH, live, "kftrainer-runtimes") == [
        {"op": "add", "path": "/spec", "value": DOCUMENT["spec"]},
        {
            "op": "add",
            "path": "/metadata/labels",
            "value": {"theirs": "1", **TORCH.manifest["metadata"]["labels"]},
        },
        {
            "op": "add",
            "path": "/metadata/annotations",
            "value": {"note": "x", HASH: TORCH.mark},
        },
        {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
    ]


@pytest.mark.parametrize(
    "error", [ConflictError(409, "Conflict", ""), NotFoundError(404, "NotFound", "")]
)
async def test_conflict_is_not_an_error(
    error: KubeError,
) -> None:
    assert await Cluster(existing(), error).reconciler(wanted=False).reconcile(KEY) == DONE
    cluster = Cluster(None, error)
    assert await cluster.reconciler(wanted=True).reconcile(KEY) == LATER, "an apply has no news"


async def test_missing_kind_fails_the_reconcile() -> None:
    cluster = Cluster(None, KindNotFoundError(404, "NotFound", "page not found"))
    with pytest.raises(ReconcileError, match="cannot apply the runtime: page not found"):
        await cluster.reconciler(wanted=True).reconcile(KEY)


@pytest.mark.parametrize(("metadata", "wanted"), [(None, True), (existing(), False)])
async def test_failed_write_fails_the_reconcile_until_it_succeeds(
    metadata: Object | None, wanted: bool
) -> None:
    cluster = Cluster(metadata, ForbiddenError(403, "Forbidden", "you may not"))
    reconciler = cluster.reconciler(wanted=wanted)
    verb, event = ("apply", "applied") if wanted else ("delete", "deleted")
    with capture_logs() as logged:
        for _ in range(3):
            with pytest.raises(ReconcileError, match=f"cannot {verb} the runtime: you may not"):
                await reconciler.reconcile(KEY)
        cluster.error = WriteGuardError("not sent")
        assert await reconciler.reconcile(KEY) == LATER
        cluster.error = None
        assert await reconciler.reconcile(KEY) == DONE
    assert events(logged) == [f"shipped_runtime_{event}"]


def events(logged: list[Any]) -> list[str]:
    return [entry["event"] for entry in logged if entry["log_level"] != "debug"]


@pytest.mark.parametrize(("wanted", "undone"), [(True, None), (False, existing())])
async def test_reverted_write_is_repeated_at_growing_intervals(
    wanted: bool, undone: Object | None
) -> None:
    cluster = Cluster(undone)
    reconciler = cluster.reconciler(wanted=wanted)
    acts = list[float]()
    with capture_logs() as logged:
        for _ in range(1000):  # looks: the other one acts as soon as we have acted
            before = len(cluster.requests)
            result = await reconciler.reconcile(KEY)
            if len(cluster.requests) > before:
                acts.append(cluster.clock.monotonic())
            await cluster.clock.advance(min(0.25, result.requeue_after or 0.25))
    pauses = [after - at for at, after in pairwise(acts)]
    assert len(acts) == 12, "in four minutes"
    assert all(after > before for before, after in pairwise(pauses[:9]))
    [warning] = [each for each in logged if each["event"] == "shipped_runtime_repeatedly_changed"]
    assert warning["log_level"] == "warning"
    assert warning["others"] == (["argocd"] if wanted else [])


async def test_lagging_cache_does_not_count_as_reverted() -> None:
    cluster = Cluster(None)
    reconciler = cluster.reconciler(wanted=True)
    with capture_logs() as logged:
        assert await reconciler.reconcile(KEY) == DONE
        assert await reconciler.reconcile(KEY) == Result(requeue_after=0.2)
        cluster.metadata = existing()
        await cluster.clock.advance(0.2)
        assert await reconciler.reconcile(KEY) == DONE
    assert len(cluster.requests) == 1
    assert events(logged) == ["shipped_runtime_applied"]


async def test_runtime_of_another_client_is_not_modified_until_it_is_labelled() -> None:
    cluster = Cluster(existing(ours=False, mark=None))
    reconciler = cluster.reconciler(wanted=True)
    with capture_logs() as logged:
        for _ in range(3):
            assert await reconciler.reconcile(KEY) == DONE
        assert cluster.requests == []
        cluster.metadata = existing(mark=None)
        assert await reconciler.reconcile(KEY) == DONE
    assert events(logged) == ["shipped_runtime_not_managed", "shipped_runtime_applied"]
    assert "label it trainer.kubeflow.org/managed-by=kftrainer" in logged[0]["why"]
    assert logged[0]["log_level"] == "warning"
    assert "labelled it" in logged[-1]["why"]


async def test_runtime_without_file_is_kept_while_trainjobs_refer_to_it() -> None:
    cluster = Cluster(existing())
    cluster.used.add("ClusterTrainingRuntime.trainer.kubeflow.org torch")
    reconciler = cluster.reconciler(wanted=False)
    with capture_logs() as logged:
        for _ in range(3):
            assert await reconciler.reconcile(KEY) == DONE
        assert cluster.requests == []
        cluster.used.clear()
        assert await reconciler.reconcile(KEY) == DONE
    assert cluster.requests == ["delete torch u 7"]
    assert events(logged) == ["shipped_runtime_kept", "shipped_runtime_deleted"]
    assert logged[0]["why"] == IN_USE


async def test_manager_of_some_namespaces_deletes_nothing() -> None:
    cluster = Cluster(existing())
    reconciler = cluster.reconciler(wanted=False, watches_all=False)
    with capture_logs() as logged:
        for _ in range(3):
            assert await reconciler.reconcile(KEY) == DONE
    assert cluster.requests == []
    assert [(each["event"], each["why"]) for each in logged] == [
        ("shipped_runtime_kept", PERHAPS_IN_USE)
    ]


async def test_runtime_is_out_of_date_until_the_cache_has_it() -> None:
    cluster = Cluster(None, ForbiddenError(403, "Forbidden", "you may not"))
    reconciler = cluster.reconciler(wanted=True)
    assert cluster.out_of_date() is None, "only the leader reports"
    with pytest.raises(ReconcileError):
        await reconciler.reconcile(KEY)
    assert cluster.out_of_date() == 1
    cluster.error = None
    await reconciler.reconcile(KEY)
    assert cluster.out_of_date() == 1, "it may have failed"
    cluster.metadata = existing()
    await reconciler.reconcile(KEY)
    assert cluster.out_of_date() == 0
    cluster.metadata = existing(mark="torch/other")
    await reconciler.reconcile(KEY)
    assert cluster.out_of_date() == 1, "somebody undoes it"


async def test_runtime_without_file_is_out_of_date_until_it_is_deleted() -> None:
    cluster = Cluster(existing(), ForbiddenError(403, "Forbidden", "you may not"))
    reconciler = cluster.reconciler(wanted=False)
    with pytest.raises(ReconcileError):
        await reconciler.reconcile(KEY)
    assert cluster.out_of_date() == 1
    cluster.metadata = None
    await reconciler.reconcile(KEY)
    assert cluster.out_of_date() is None


@pytest.mark.parametrize(
    ("wanted", "metadata", "retry_after"),
    [
        (True, existing(ours=False, mark=None), 0),
        (True, existing(going=True), 0),
        (False, existing(), None),
        (False, existing(ours=False, mark=None), None),
    ],
    ids=["not ours", "being deleted", "in use", "somebody else's"],
)
async def test_runtime_that_is_not_modified_is_not_out_of_date(
    wanted: bool, metadata: Object, retry_after: float | None
) -> None:
    cluster = Cluster(metadata)
    cluster.used.add("ClusterTrainingRuntime.trainer.kubeflow.org torch")
    await cluster.reconciler(wanted=wanted).reconcile(KEY)
    assert cluster.out_of_date() == retry_after
