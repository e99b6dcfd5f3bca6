"""What is deleted when all is to go, in which order, and what is not waited for."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.api.runtime_revisions import revision_manifest, revision_name
from kftrainer.cli.cluster.connection import DeadlineExceededError
from kftrainer.cli.cluster.remaining_objects import Found, advice, listed, next_step
from kftrainer.cli.commands.purge import Purge
from kftrainer.cli.main import main
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ForbiddenError
from kftrainer.kube.client.transport import Response
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import Resource
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.object_server import Object, ObjectServer, refusal

OURS = "/apis/trainer.kubeflow.org/v1alpha1"
JOBS, RUNTIMES = f"{OURS}/trainjobs", f"{OURS}/trainingruntimes"
CLUSTER = f"{OURS}/clustertrainingruntimes"
LABELS = {"trainer.kubeflow.org/managed-by": "kftrainer"}
MARK = {"trainer.kubeflow.org/shipped-hash": "torch/123"}
SHIPPED: Object = {"labels": LABELS, "annotations": MARK}
IN_USE = "trainer.kubeflow.org/resource-in-use"
DELETION_TIMESTAMP = "2026-01-01T00:00:00Z"


def meta(name: str, namespace: str | None = "a", **more: Any) -> Object:
    where = {} if namespace is None else {"namespace": namespace}
    return {"name": name, "uid": f"uid-of-{name}", **where, **more}


def found(kind: Resource[Any], name: str, **more: Any) -> Found:
    namespace = "a" if kind.namespaced else None
    return Found(kind, ObjectMeta.parse(meta(name, namespace, **more)))


JOB = found(TRAIN_JOBS, "job")
RUNTIME = found(TRAINING_RUNTIMES, "mine")
TORCH = found(CLUSTER_TRAINING_RUNTIMES, "torch", **SHIPPED)


def test_runtimes_wait_for_the_last_train_job() -> None:
    assert next_step([JOB, RUNTIME, TORCH], {}) == ([JOB], [JOB, RUNTIME, TORCH])
    going = found(TRAIN_JOBS, "job", deletionTimestamp=DELETION_TIMESTAMP)
    assert next_step([going, RUNTIME], {}) == ([], [going, RUNTIME])
    assert next_step([RUNTIME, TORCH], {}) == ([RUNTIME, TORCH], [RUNTIME, TORCH])
    assert next_step([], {}) == ([], [])


def test_objects_reapplied_by_the_manager_are_not_waited_for_unless_deletion_was_blocked() -> None:
    deleted = {TORCH.identity: "uid-of-the-one-before"}
    assert next_step([TORCH], deleted) == ([], [])
    assert next_step([TORCH], {TORCH.identity: TORCH.metadata.uid}) == ([TORCH], [TORCH])
    used = found(CLUSTER_TRAINING_RUNTIMES, "torch", **SHIPPED, finalizers=[IN_USE])
    assert next_step([used], deleted) == ([used], [used])
    going = found(
        CLUSTER_TRAINING_RUNTIMES, "torch", **SHIPPED, deletionTimestamp=DELETION_TIMESTAMP
    )
    assert next_step([going], deleted) == ([], [going])
    for more in ({}, {"labels": LABELS}, {"annotations": MARK}):
        foreign = found(CLUSTER_TRAINING_RUNTIMES, "torch", **more)
        assert next_step([foreign], deleted) == ([foreign], [foreign])


def test_list_is_truncated_and_names_finalizers() -> None:
    jobs = [found(TRAIN_JOBS, f"job-{number}") for number in range(7)]
    kept = found(
        TRAINING_RUNTIMES, "mine", deletionTimestamp=DELETION_TIMESTAMP, finalizers=[IN_USE, "a/b"]
    )
    assert listed([kept, *jobs]) == [
        "7 TrainJobs: a/job-0, a/job-1, a/job-2, a/job-3, a/job-4 and 2 more",
        f"1 TrainingRuntime: a/mine (kept by {IN_USE}, a/b)",
    ]


HINT = (
    f"nothing removes the finalizer {IN_USE}: no manager is running, or it watches other "
    "namespaces only; to remove it manually: kubectl patch "
)


def test_leftover_finalizers_can_be_removed_on_request() -> None:
    kept: Object = {"deletionTimestamp": DELETION_TIMESTAMP, "finalizers": [IN_USE]}
    in_use = found(TRAINING_RUNTIMES, "mine", **kept)
    assert advice([in_use], of_all=True) == (
        HINT + "trainingruntimes.trainer.kubeflow.org mine --namespace a --type=merge --patch "
        """'{"metadata":{"finalizers":[]}}'"""
    )
    assert advice([JOB, in_use], of_all=True) is None, "a TrainJob may use it"
    torch = found(CLUSTER_TRAINING_RUNTIMES, "torch", **{**kept, "finalizers": ["a/b", IN_USE]})
    command = (
        "clustertrainingruntimes.trainer.kubeflow.org torch --type=merge --patch "
        """'{"metadata":{"finalizers":["a/b"]}}'"""
    )
    assert advice([TORCH, torch], of_all=True) == HINT + command
    assert advice([torch], of_all=False) == (
        f"unless TrainJobs of other namespaces use the runtime, {HINT}{command}"
    )
    assert advice([RUNTIME, TORCH], of_all=True) is None


class Purging:
    """A purge of a server, by a clock of its own."""

    def __init__(
        self, server: ObjectServer, *namespaces: str, seconds: float = 60.0, cluster: bool = False
    ) -> None:
        self.clock = FakeClock()
        self.output: list[str] = []
        self.purge = Purge(
            Client(server),  # type: ignore[arg-type]
            namespaces,
            seconds,
            clock=self.clock,
            cluster_runtimes=cluster,
            report=self.output.append,
        )

    async def error(self) -> Exception:
        with pytest.raises(ExceptionGroup) as raised:
            await self.run()
        [error] = raised.value.exceptions
        assert isinstance(error, Exception)
        return error

    async def run(self, seconds: float = 60.0) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self.purge.run())
            await at_rest()
            for _ in range(int(seconds * 4)):
                if not running.done():
                    await self.clock.advance(0.25)


async def test_revisions_of_runtimes_are_deleted_at_the_end_and_other_objects_are_kept() -> None:
    content = {"kind": "TrainingRuntime", "metadata": {"name": "torch"}, "spec": {}}
    found = revision_manifest(content, "a", revision_name(content), 1)
    metadata = {**found["metadata"], "uid": "u"}
    ours = {**found, "metadata": metadata}
    forged = {**ours, "metadata": {**metadata, "name": "forged"}}
    server = ObjectServer({JOBS: [meta("one")], RUNTIMES: [], CLUSTER: []})

    def answer(method: str, path: str) -> Response | None:
        if "controllerrevisions" not in path:
            return None
        page = {"metadata": {"resourceVersion": "1"}, "items": [ours, forged]}
        return Response(200, {}, orjson.dumps(page if method == "GET" else {}))

    server.answer = answer
    purging = Purging(server)
    await purging.run()
    assert [each for each in server.requests if each.startswith("DELETE")] == [
        f"DELETE {OURS}/namespaces/a/trainjobs/one",
        f"DELETE /apis/apps/v1/namespaces/a/controllerrevisions/{ours['metadata']['name']}",
    ]
    assert server.bodies[-1]["preconditions"] == {"uid": "u"}
    assert purging.output[-2:] == [
        "deleted 1 ControllerRevisions of runtimes",
        "no TrainJobs and no runtimes are left",
    ]


async def test_everything_is_deleted_with_the_dependents_of_jobs() -> None:
    server = ObjectServer(
        {
            JOBS: [meta("one"), meta("two", "b")],
            RUNTIMES: [meta("mine")],
            CLUSTER: [meta("torch", None)],
        }
    )
    purging = Purging(server)
    await purging.run()
    assert [each for each in server.requests if each.startswith("DELETE")] == [
        f"DELETE {OURS}/namespaces/a/trainjobs/one",
        f"DELETE {OURS}/namespaces/b/trainjobs/two",
        f"DELETE {OURS}/namespaces/a/trainingruntimes/mine",
        f"DELETE {CLUSTER}/torch",
    ]
    policies = [each["propagationPolicy"] for each in server.bodies]
    assert policies == ["Foreground", "Foreground", "Background", "Background"]
    assert server.bodies[0]["preconditions"] == {"uid": "uid-of-one"}
    assert purging.output == [
        "deleting 2 TrainJobs: a/one, b/two",
        "left: 1 TrainingRuntime: a/mine; 1 ClusterTrainingRuntime: torch",
        "deleting 1 TrainingRuntime: a/mine",
        "deleting 1 ClusterTrainingRuntime: torch",
        "no TrainJobs and no runtimes are left",
    ]


@pytest.mark.parametrize("cluster", [False, True])
async def test_namespaced_purge_deletes_cluster_runtimes_only_on_request(cluster: bool) -> None:
    server = ObjectServer(
        {
            f"{OURS}/namespaces/a/trainjobs": [meta("one")],
            f"{OURS}/namespaces/b/trainjobs": [],
            f"{OURS}/namespaces/a/trainingruntimes": [],
            f"{OURS}/namespaces/b/trainingruntimes": [],
            CLUSTER: [meta("torch", None)],
        }
    )
    purging = Purging(server, "a", "b", cluster=cluster)
    await purging.run()
    left = server.collections.pop(CLUSTER)
    assert not any(server.collections.values())
    assert f"GET {JOBS}" not in server.requests
    assert (f"GET {CLUSTER}" in server.requests, left == []) == (cluster, cluster)
    assert purging.output[-1] == "no TrainJobs and no TrainingRuntimes are left in a, b" + (
        ", and no ClusterTrainingRuntimes"
        if cluster
        else "; ClusterTrainingRuntimes were not deleted"
    )


async def test_missing_kinds_mean_nothing_to_purge() -> None:
    purging = Purging(ObjectServer({}))
    await purging.run()
    assert purging.output == ["the CustomResourceDefinitions are not installed: nothing to delete"]
    purging = Purging(ObjectServer({RUNTIMES: []}))
    await purging.run()
    assert purging.output == ["no TrainJobs and no runtimes are left"]


async def test_remaining_objects_are_reported_periodically_and_at_the_end() -> None:
    server = ObjectServer({JOBS: [meta("one", finalizers=["acme.io/hold"])], RUNTIMES: []})
    purging = Purging(server, seconds=25.0)
    error = await purging.error()
    assert isinstance(error, DeadlineExceededError)
    left = "left: 1 TrainJob: a/one (kept by acme.io/hold)"
    assert str(error) == f"after 25 s: {left}"
    assert purging.output == ["deleting 1 TrainJob: a/one", left, left, left]
    assert sum(each.startswith("DELETE") for each in server.requests) == 1


async def test_runtime_with_leftover_finalizer_is_reported_with_advice() -> None:
    server = ObjectServer({RUNTIMES: [meta("mine", finalizers=[IN_USE])]})
    error = await Purging(server, seconds=5.0).error()
    left = f"left: 1 TrainingRuntime: a/mine (kept by {IN_USE})"
    assert str(error).startswith(f"after 5 s: {left}; {HINT}trainingruntimes.")


@pytest.mark.parametrize("method", ["DELETE", "GET"])
async def test_server_failure_does_not_hide_remaining_objects(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kftrainer.cli.cluster.connection.LAST_TRY", 60.0)
    server = ObjectServer({JOBS: [meta("one")]})
    reads = 0

    def fail(called_method: str, _path: str) -> Response | None:
        nonlocal reads
        reads += called_method == "GET"
        if called_method == "DELETE" and method == "GET":
            return Response(200, {}, orjson.dumps({}))  # but it stays
        is_now = called_method == method and (called_method == "DELETE" or reads > 6)
        return refusal(500, "InternalError", "oh") if is_now else None

    server.answer = fail
    error = await Purging(server, seconds=5.0).error()
    assert str(error) == "after 5 s: left: 1 TrainJob: a/one; the last attempt failed: oh"


async def test_runtimes_recreated_by_a_manager_are_not_waited_for() -> None:
    server = ObjectServer({JOBS: [], CLUSTER: [meta("torch", None, **SHIPPED)]})

    def recreate(method: str, _path: str) -> Response | None:
        if method == "DELETE":
            server.collections[CLUSTER] = [
                meta("torch", None, **SHIPPED) | {"uid": "uid-of-the-next"}
            ]
            return Response(200, {}, orjson.dumps({}))
        return None

    server.answer = recreate
    purging = Purging(server)
    await purging.run()
    assert sum(each.startswith("DELETE") for each in server.requests) == 1
    assert purging.output[-1] == (
        "no TrainJobs and no runtimes are left, except those that a manager has re-created: "
        "1 ClusterTrainingRuntime: torch; they are deleted with the CustomResourceDefinitions"
    )


async def test_object_already_deleted_is_not_an_error() -> None:
    server = ObjectServer({JOBS: [meta("one"), meta("two")]})

    def race(method: str, path: str) -> Response | None:
        if method != "DELETE":
            return None
        server.collections[JOBS].clear()
        return refusal(409, "Conflict") if path.endswith("one") else refusal(404, "NotFound")

    server.answer = race
    await Purging(server).run()


async def test_forbidden_deletion_is_fatal_and_transient_errors_are_retried() -> None:
    server = ObjectServer({JOBS: [meta(f"job-{number}") for number in range(50)]})
    broken = [refusal(500, "InternalError", "oh")] * 3
    server.answer = lambda method, _: broken.pop() if broken and method == "DELETE" else None
    await Purging(server).run()
    assert server.collections[JOBS] == []
    server = ObjectServer({JOBS: [meta("one")]})
    server.answer = lambda method, _: (
        refusal(403, "Forbidden", "you may not") if method == "DELETE" else None
    )
    assert isinstance(await Purging(server).error(), ForbiddenError)


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.mark.parametrize("command", [("purge",), ("purge", "--yes"), ("check",)])
@pytest.mark.usefixtures("logging_as_before", "no_cluster")
def test_missing_cluster_is_reported_in_one_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kftrainer {command[0]}: No cluster configured: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--timeout=many", "--timeout=-1", "--timeout=inf", "--nope"])
def test_useless_flag_is_a_usage_error(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["purge", flag])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
