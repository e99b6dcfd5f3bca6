"""What the command checks in a cluster, and the result of each response."""

import asyncio
from collections.abc import Callable, Mapping

import orjson
import pytest

from kftrainer.cli.cluster.connection import CommandError, DeadlineExceededError
from kftrainer.cli.commands.check import NO_RUNTIME, Inspection
from kftrainer.cli.main import main
from kftrainer.kube.client.errors import BadRequestError, ForbiddenError
from kftrainer.kube.client.transport import Response
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.object_server import Object, ObjectServer, refusal

OURS = "/apis/trainer.kubeflow.org/v1alpha1"
CLUSTER, JOBS = f"{OURS}/clustertrainingruntimes", f"{OURS}/namespaces/here/trainjobs"
WEBHOOK_DENIES = (
    'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: no runtime'
)
DENIED = refusal(403, "Forbidden", WEBHOOK_DENIES)
UNREACHED = refusal(500, "InternalError", 'failed calling webhook "validator.trainjob…"')
CREATED = Response(201, {}, orjson.dumps({}))
KINDS = {
    "TrainJob": "trainjobs",
    "TrainingRuntime": "trainingruntimes",
    "ClusterTrainingRuntime": "clustertrainingruntimes",
}
MANAGER = "/apis/apps/v1/namespaces/kubeflow-system/deployments/kubeflow-trainer-controller-manager"
PODS = "/api/v1/namespaces/kubeflow-system/pods"
RUNS = "ok: the manager is running: 1 of 1 replicas ready"
KNOWN = "ok: the API server serves TrainJob, TrainingRuntime, ClusterTrainingRuntime"


def group_of(kinds: Mapping[str, str]) -> Response:
    resources = [{"kind": kind, "name": kinds[kind], "namespaced": True} for kind in kinds]
    return Response(200, {}, orjson.dumps({"resources": resources}))


def manager(ready: int) -> Response:
    """The manager's Deployment, with one replica."""
    metadata = {"name": "kubeflow-trainer-controller-manager", "namespace": "kubeflow-system"}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}}
    body = {"metadata": metadata, "spec": spec, "status": {"readyReplicas": ready}}
    return Response(200, {}, orjson.dumps(body))


def listed(*items: Object) -> Response:
    return Response(200, {}, orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": items}))


def ours(name: str) -> Object:
    """The metadata of a runtime that a manager has applied."""
    return {
        "name": name,
        "labels": {"trainer.kubeflow.org/managed-by": "kftrainer"},
        "annotations": {"trainer.kubeflow.org/shipped-hash": f"{name}/123"},
    }


Answers = Callable[[Object], Response]


def well(job: Object) -> Response:
    return DENIED if job["spec"]["runtimeRef"]["name"] == NO_RUNTIME else CREATED


class Inspecting:
    """An inspection of a server with these runtimes, by a clock of its own."""

    def __init__(self, *runtimes: str | Object, answers: Answers = well) -> None:
        named = [each if isinstance(each, dict) else {"name": each} for each in runtimes]
        self.server = ObjectServer({CLUSTER: named})
        self.server.answer = self._answer
        self.answers = answers
        self.groups = [group_of(KINDS)]  # the last one stays
        self.managers = [manager(ready=1)]  # the same
        self.pods = listed()
        self.clock = FakeClock()
        self.messages: list[str] = []

    def _answer(self, method: str, path: str) -> Response | None:
        if path == OURS:
            return self.groups.pop(0) if len(self.groups) > 1 else self.groups[0]
        if path == MANAGER:
            return self.managers.pop(0) if len(self.managers) > 1 else self.managers[0]
        if path == PODS:
            return self.pods
        if method != "POST":
            return None
        assert path == JOBS
        return self.answers(self.server.bodies[-1])

    async def run(self, *expected: str, webhook: bool = True) -> list[str]:
        inspection = Inspection(
            self.server,  # type: ignore[arg-type]
            "here",
            5.0,
            clock=self.clock,
            report=self.messages.append,
        )
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(inspection.run(expected, with_webhook=webhook))
            await at_rest()
            while not looking.done():
                await self.clock.advance(0.25)
        return self.messages

    async def error(self, *expected: str, webhook: bool = True) -> Exception:
        with pytest.raises(ExceptionGroup) as raised:
            await self.run(*expected, webhook=webhook)
        [error] = raised.value.exceptions
        return error


async def test_valid_setup_passes() -> None:
    inspecting = Inspecting("plain", "torch")
    assert await inspecting.run("torch") == [
        KNOWN,
        RUNS,
        "ok: found 2 ClusterTrainingRuntimes",
        "ok: all expected runtimes exist: torch",
        "ok: the webhook validator.trainjob.trainer.kubeflow.org rejects an invalid TrainJob",
        "ok: the webhook defaulter.trainjob.trainer.kubeflow.org changes TrainJobs to canonical "
        "form",
        "ok: a valid TrainJob is admitted with runtime torch",
    ]
    metadata = {"generateName": "kftrainer-check-", "namespace": "here"}
    assert [each["metadata"] for each in inspecting.server.bodies] == [metadata, metadata]


async def test_shipped_runtime_is_tried_by_default() -> None:
    assert (await Inspecting("mine", ours("plain"), ours("torch")).run())[-1] == (
        "ok: a valid TrainJob is admitted with runtime plain"
    )
    labelled = {**ours("copy"), "annotations": ours("plain")["annotations"]}
    for runtimes in ([], ["mine", labelled]):
        assert (await Inspecting(*runtimes).run())[-1] == (
            "not checked: admission of a valid TrainJob, because no ClusterTrainingRuntime was "
            "installed with the operator; pass --runtime NAME to use another one"
        )


async def test_without_a_webhook_nothing_is_tried() -> None:
    inspecting = Inspecting("plain")
    found_runtime = "ok: found 1 ClusterTrainingRuntime"
    assert await inspecting.run(webhook=False) == [KNOWN, RUNS, found_runtime]
    paths = (OURS, MANAGER, PODS, CLUSTER)
    assert inspecting.server.requests == [f"GET {path}" for path in paths]


async def test_manager_that_does_not_run_is_diagnosed_before_anything_that_needs_it() -> None:
    inspecting = Inspecting(answers=lambda _: UNREACHED)
    inspecting.managers = [manager(ready=0)]
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}
    status = {"containerStatuses": [{"name": "manager", "state": {"waiting": waiting}}]}
    inspecting.pods = listed({"metadata": {"name": "one"}, "status": status})
    assert str(await inspecting.error("torch")) == (
        "after 5 s: the manager is not running: Deployment "
        "kubeflow-system/kubeflow-trainer-controller-manager has 0 of 1 replicas ready: "
        'pod one, container manager: ImagePullBackOff: Back-off pulling image "x"'
    )


async def test_manager_that_starts_is_waited_for() -> None:
    inspecting = Inspecting("plain")
    inspecting.managers = [manager(ready=0), manager(ready=0), manager(ready=1)]
    assert RUNS in await inspecting.run()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            refusal(404, "NotFound"),
            "Deployment kubeflow-system/kubeflow-trainer-controller-manager not found; "
            "pass --manager NAMESPACE/NAME",
        ),
        (refusal(403, "Forbidden", "deployments is forbidden"), "deployments is forbidden"),
    ],
)
async def test_manager_whose_deployment_cannot_be_read_is_not_checked(
    answer: Response, reason: str
) -> None:
    inspecting = Inspecting("plain")
    inspecting.managers = [answer]
    assert (await inspecting.run())[1] == f"not checked: the manager: {reason}"


@pytest.mark.parametrize("text", ["manager", "/manager", "there/", "a/b/c", "A/b"])
def test_manager_must_be_a_namespace_and_a_name(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["check", "--manager", text])
    assert stopped.value.code == 2
    assert "--manager" in capsys.readouterr().err


async def test_late_runtimes_are_waited_for() -> None:
    inspecting = Inspecting("plain")
    reads = 0

    def respond_later(method: str, path: str) -> Response | None:
        nonlocal reads
        reads += (method, path) == ("GET", CLUSTER)
        if reads == 3:
            inspecting.server.collections[CLUSTER] = [{"name": "plain"}, {"name": "torch"}]
        return inspecting._answer(method, path)

    inspecting.server.answer = respond_later
    lines = await inspecting.run("plain", "torch")
    assert lines[3] == "ok: all expected runtimes exist: plain, torch"
    assert lines[-1] == "ok: a valid TrainJob is admitted with runtime plain, torch"


async def test_missing_runtimes_are_named() -> None:
    going = {"name": "torch", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    error = await Inspecting("plain", going).error("plain", "torch", "mlx")
    assert isinstance(error, DeadlineExceededError)
    lines, _, hint = str(error).partition("; ")
    assert lines == "after 5 s: ClusterTrainingRuntime not found: torch, mlx"
    assert "cannot apply the runtime" in hint


@pytest.mark.parametrize("webhook", [False, True])
@pytest.mark.parametrize("missing", KINDS)
async def test_kind_that_is_not_served_is_reported(missing: str, webhook: bool) -> None:
    inspecting = Inspecting()
    inspecting.groups = [group_of({kind: KINDS[kind] for kind in KINDS if kind != missing})]
    assert str(await inspecting.error(webhook=webhook)) == (
        f"after 5 s: the API server does not serve {missing}.trainer.kubeflow.org"
    )
    inspecting = Inspecting()
    inspecting.groups = [refusal(404, "NotFound")]
    assert str(await inspecting.error(webhook=webhook)) == (
        "after 5 s: the API server does not serve TrainJob.trainer.kubeflow.org, "
        "TrainingRuntime.trainer.kubeflow.org, ClusterTrainingRuntime.trainer.kubeflow.org"
    )


async def test_kinds_that_are_served_late_are_waited_for() -> None:
    unserved = refusal(404, "NotFound", "the server could not find the requested resource")
    first = [unserved, DENIED, unserved]
    inspecting = Inspecting(ours("plain"), answers=lambda job: first.pop() if first else well(job))
    inspecting.groups = [refusal(404, "NotFound"), group_of({}), group_of(KINDS)]
    assert (await inspecting.run())[-1] == "ok: a valid TrainJob is admitted with runtime plain"
    assert first == []
    late = Inspecting(answers=lambda _: refusal(404, "NotFound", 'namespaces "here" not found'))
    assert str(await late.error()) == (
        'after 5 s: the API server cannot create a TrainJob: namespaces "here" not found'
    )


async def test_late_webhook_is_waited_for() -> None:
    first = [UNREACHED, CREATED, UNREACHED]
    inspecting = Inspecting(ours("plain"), answers=lambda job: first.pop() if first else well(job))
    assert (await inspecting.run())[-1] == "ok: a valid TrainJob is admitted with runtime plain"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (UNREACHED, "the API server cannot call the webhook: failed calling webhook"),
        (
            CREATED,
            "an invalid TrainJob was admitted: the API server does not call validator.",
        ),
        (
            refusal(403, "Forbidden", 'admission webhook "acme.io" denied the request: never'),
            "an invalid TrainJob was rejected, but not by validator.trainjob.trainer.kubeflow.org",
        ),
    ],
)
async def test_invalid_train_job_must_be_rejected_by_our_webhook(
    answer: Response, message: str
) -> None:
    error = await Inspecting("plain", answers=lambda _: answer).error()
    assert isinstance(error, DeadlineExceededError)
    assert str(error).startswith(f"after 5 s: {message}")


async def test_webhook_that_is_not_called_is_reported_with_both_causes() -> None:
    error = await Inspecting("plain", answers=lambda _: CREATED).error()
    assert str(error).endswith(
        "for TrainJobs in namespace here, or the manager does not watch this namespace"
    )


async def test_forbidden_dry_run_is_reported_immediately() -> None:
    forbidden = refusal(403, "Forbidden", 'User "me" cannot create resource "trainjobs"')
    inspecting = Inspecting("plain", answers=lambda _: forbidden)
    assert isinstance(await inspecting.error(), ForbiddenError)
    assert inspecting.clock.monotonic() == 0


@pytest.mark.parametrize("answer", [DENIED, refusal(422, "Invalid", WEBHOOK_DENIES)])
async def test_valid_train_job_must_be_accepted(answer: Response) -> None:
    answers = [DENIED, answer]
    error = await Inspecting("plain", answers=lambda _: answers.pop(0)).error("plain")
    assert isinstance(error, CommandError)
    assert str(error) == f"a valid TrainJob with runtime plain was rejected: {WEBHOOK_DENIES}"


async def test_valid_train_job_must_be_changed_to_canonical_form() -> None:
    def answer(job: Object) -> Response:
        denied = job["spec"]["runtimeRef"]["name"] == NO_RUNTIME
        return DENIED if denied else Response(201, {}, orjson.dumps(job))

    error = await Inspecting(ours("plain"), answers=answer).error()
    assert isinstance(error, DeadlineExceededError)
    assert str(error) == (
        "after 5 s: a TrainJob was not changed to canonical form: the API server does not call "
        "defaulter.trainjob.trainer.kubeflow.org for TrainJobs in namespace here, or cannot call it"
    )


async def test_unexpected_response_is_reported_unchanged() -> None:
    answers = [DENIED, refusal(400, "BadRequest", "what?")]
    error = await Inspecting("plain", answers=lambda _: answers.pop(0)).error("plain")
    assert isinstance(error, BadRequestError)
    assert str(error) == "what?"


def test_help_names_what_is_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    assert "does not check that a leader is elected" in " ".join(capsys.readouterr().out.split())
