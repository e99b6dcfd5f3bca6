"""What is done about a runtime that comes with the operator: applied, deleted, or left alone."""

from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from kftrainer.controllers.shipped_runtimes import (
    Apply,
    Delete,
    ShippedRuntimesReconciler,
    next_step,
    shipped,
)
from kftrainer.kube.errors import ConflictError, ForbiddenError, KubeError, NotFoundError
from kftrainer.kube.meta import ObjectMeta
from kftrainer.kube.resource import ObjectKey
from kftrainer.machinery.reconcile import DONE, Result
from tests.support.objects import Object, runtime

if TYPE_CHECKING:
    from kftrainer.kube.client import Client
    from kftrainer.machinery.cache import Cache

LABEL = "trainer.kubeflow.org/managed-by"
HASH = "trainer.kubeflow.org/shipped-hash"
DOCUMENT = runtime("torch", "ClusterTrainingRuntime")
TORCH = shipped(DOCUMENT)
KEY = ObjectKey("", "torch")
LATER = Result(requeue=True)


def there(*, ours: bool = True, mark: str | None = TORCH.mark, going: bool = False) -> Object:
    """The metadata of a runtime in the cluster."""
    metadata: Object = {"name": "torch", "uid": "u", "resourceVersion": "7"}
    metadata["labels"] = {LABEL: "kftrainer"} if ours else {"team": "a"}
    metadata["annotations"] = {} if mark is None else {HASH: mark}
    return {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"} if going else metadata


MISSING = Apply(TORCH, "it is not there")
CHANGED = Apply(TORCH, "its file is another now")


@pytest.mark.parametrize(
    ("wanted", "metadata", "step"),
    [
        (True, None, MISSING),
        (True, there(), None),
        (True, there(ours=False), None),
        (True, there(mark="torch/other"), CHANGED),
        (True, there(ours=False, mark=None), CHANGED),
        (True, there(mark="torch/other", going=True), None),
        (True, there(going=True), None),
        (False, None, None),
        (False, there(), Delete("u", "7")),
        (False, there(mark="torch/other"), Delete("u", "7")),
        (False, there(mark="torch-distributed/other"), None),
        (False, there(mark=None), None),
        (False, there(going=True), None),
        (False, there(ours=False), None),
        (False, there(ours=False, mark=None), None),
    ],
)
def test_the_step(wanted: bool, metadata: Object | None, step: Apply | Delete | None) -> None:
    seen = None if metadata is None else ObjectMeta.parse(metadata)
    assert next_step(TORCH if wanted else None, seen) == step


def test_the_label_of_somebody_else_is_not_ours() -> None:
    metadata = ObjectMeta.parse({**there(), "labels": {LABEL: "acme"}})
    assert next_step(None, metadata) is None


def test_a_document_is_marked_and_otherwise_as_it_was() -> None:
    before = {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "annotations": {"a": "b"}}}
    made = shipped(before)
    assert made.manifest == {
        **before,
        "metadata": {
            "name": "torch",
            "labels": {"trainer.kubeflow.org/framework": "torch", LABEL: "kftrainer"},
            "annotations": {"a": "b", HASH: made.mark},
        },
    }
    assert LABEL not in before["metadata"]["labels"], "nobody writes into what was read"


def test_the_mark_is_of_what_the_document_says_and_not_of_how() -> None:
    turned = dict(reversed(DOCUMENT.items()))
    assert shipped(turned).mark == TORCH.mark
    other = {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "labels": {"a": "b"}}}
    assert shipped(other).mark != TORCH.mark


class Cluster:
    """A client and a cache of one runtime."""

    def __init__(self, metadata: Object | None, error: KubeError | None = None) -> None:
        self.metadata = metadata
        self.error = error
        self.asked: list[str] = []

    def informer(self, _: Any) -> "Cluster":
        return self

    def seen(self, _: ObjectKey) -> "Cluster | None":
        return None if self.metadata is None else self

    async def apply(self, _: Any, manifest: Object, *, field_manager: str) -> None:
        self._ask(f"apply {manifest['metadata']['name']} as {field_manager}")

    async def delete(self, _: Any, key: ObjectKey, *, uid: str, resource_version: str) -> None:
        self._ask(f"delete {key} {uid} {resource_version}")

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.error is not None:
            raise self.error

    def reconciler(self, *, wanted: bool) -> ShippedRuntimesReconciler:
        client, cache = cast("Client", self), cast("Cache", self)
        return ShippedRuntimesReconciler(client, cache, {"torch": TORCH} if wanted else {})


async def test_it_applies_and_deletes_under_its_own_name() -> None:
    absent, present = Cluster(None), Cluster(there())
    assert await absent.reconciler(wanted=True).reconcile(KEY) == DONE
    assert absent.asked == ["apply torch as kftrainer-runtimes"]
    assert await present.reconciler(wanted=False).reconcile(KEY) == DONE
    assert present.asked == ["delete torch u 7"]


@pytest.mark.parametrize(
    "error", [ConflictError(409, "Conflict", ""), NotFoundError(404, "NotFound", "")]
)
async def test_what_has_changed_before_it_was_deleted_is_looked_at_again_by_its_news(
    error: KubeError,
) -> None:
    assert await Cluster(there(), error).reconciler(wanted=False).reconcile(KEY) == DONE
    cluster = Cluster(None, error)
    assert await cluster.reconciler(wanted=True).reconcile(KEY) == LATER, "an apply has no news"


@pytest.mark.parametrize(
    ("metadata", "wanted", "event"),
    [
        (None, True, "shipped_runtime.not_applied"),
        (there(), False, "shipped_runtime.not_deleted"),
    ],
)
async def test_trouble_is_told_once_until_it_is_over_or_another(
    metadata: Object | None, wanted: bool, event: str
) -> None:
    cluster = Cluster(metadata, ForbiddenError(403, "Forbidden", "you may\nnot"))
    reconciler = cluster.reconciler(wanted=wanted)
    with capture_logs() as logged:
        for _ in range(3):
            assert await reconciler.reconcile(KEY) == LATER
        cluster.error = KubeError("no answer")
        assert await reconciler.reconcile(KEY) == LATER
        cluster.error = None
        assert await reconciler.reconcile(KEY) == DONE
        cluster.error = KubeError("no answer")
        assert await reconciler.reconcile(KEY) == LATER
    told = [entry for entry in logged if entry["log_level"] != "debug"]
    success = event.replace("not_", "")
    assert [entry["event"] for entry in told] == [event, event, success, event]
    assert [entry.get("error") for entry in told] == [
        "you may not",
        "no answer",
        None,
        "no answer",
    ]
