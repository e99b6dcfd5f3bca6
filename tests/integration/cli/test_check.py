"""`kftrainer check` on a real API server, with a manager that does its work and with none."""

from pathlib import Path

import pytest
import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import PortReservations
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import Team
from tests.support.commands import FAILS_WITHIN, error_output, kftrainer
from tests.support.objects import runtime
from tests.support.permissions import allow
from tests.support.runtimes import SHIPPED
from tests.support.webhooks import MERGE, admitting_manager, register, unregister

WEBHOOK = "validator.trainjob.trainer.kubeflow.org"
DEFAULTER = "defaulter.trainjob.trainer.kubeflow.org"
KNOWN = "ok: the API server serves TrainJob, TrainingRuntime, ClusterTrainingRuntime"
NAMES = [str(each["metadata"]["name"]) for each in SHIPPED]
EXPECTED = [flag for name in NAMES for flag in ("--runtime", name)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, document in zip(NAMES, SHIPPED, strict=True):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return tmp_path


async def test_check_with_the_documented_permissions_passes(
    plane: ControlPlane, admin: ApiClient, team: Team, folder: Path
) -> None:
    user = f"tester-{team.namespace}"
    await allow(admin, user, ["list"], ["clustertrainingruntimes"])
    await allow(admin, user, ["create"], ["trainjobs"], name=f"{user}-jobs", in_=team.namespace)
    where = ("--kubeconfig", plane.kubeconfig_for(user), "--namespace", team.namespace)
    async with admitting_manager(plane, "--runtimes", str(folder)):
        ended = await kftrainer("check", *where, *EXPECTED)
        assert (ended.code, ended.err) == (0, [])
        assert ended.out[0] == KNOWN
        assert ended.out[1].startswith("not checked: the manager: deployments.apps ")
        assert ended.out[3:] == [
            f"ok: all expected runtimes exist: {', '.join(NAMES)}",
            f"ok: the webhook {WEBHOOK} rejects an invalid TrainJob",
            f"ok: the webhook {DEFAULTER} changes TrainJobs to canonical form",
            f"ok: a valid TrainJob is admitted with runtime {', '.join(NAMES)}",
        ]
        assert await team.all("TrainJob") == []


async def test_failed_check_is_reported_in_one_line(
    plane: ControlPlane, admin: ApiClient, team: Team, no_webhook: None
) -> None:
    user = f"stranger-{team.namespace}"
    await team.api.create(runtime(team.namespace, "ClusterTrainingRuntime"))
    where = ("--kubeconfig", plane.kubeconfig, "--namespace", team.namespace)
    flags = (*where, "--timeout", "1")
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    try:
        assert (await error_output("check", *flags, "--runtime", "nobodys")).startswith(
            "after 1 s: ClusterTrainingRuntime not found: nobodys; "
        )
        assert await error_output("check", *flags) == (
            f"after 1 s: an invalid TrainJob was admitted: the API server does not call {WEBHOOK} "
            f"for TrainJobs in namespace {team.namespace}, or the manager does not watch this "
            "namespace"
        )
        assert await error_output("check", *flags, "--namespace", "nobodys") == (
            'after 1 s: the API server cannot create a TrainJob: namespaces "nobodys" not found'
        )
        assert (await kftrainer("check", *where, "--no-webhook")).code == 0
        await register(admin, ports.reserve())

        async def unreached() -> bool:
            message = await error_output("check", *flags)
            return (
                "the API server cannot call the webhook: Internal error occurred: failed "
                in message
            )

        await until(unreached, within=FAILS_WITHIN, what="the webhook being called")
        line = await error_output("check", "--kubeconfig", plane.kubeconfig_for(user))
        assert line.startswith(
            f'clustertrainingruntimes.trainer.kubeflow.org is forbidden: User "{user}"'
        )
    finally:
        await unregister(admin)
        ports.release_all()


async def test_unwatched_namespace_is_reported_as_a_possible_cause(
    plane: ControlPlane, team: Team, folder: Path
) -> None:
    flags = ("--kubeconfig", plane.kubeconfig, "--timeout", "1", "--namespace", team.namespace)
    async with admitting_manager(plane, "--runtimes", str(folder), "--namespace", "default"):
        message = await error_output("check", *flags)
        assert message.endswith("or the manager does not watch this namespace")
        ended = await kftrainer("check", "--kubeconfig", plane.kubeconfig)
        assert ended.code == 0, "in the namespace default"
        assert ended.out[-1] == f"ok: a valid TrainJob is admitted with runtime {min(NAMES)}"


async def test_manager_whose_image_cannot_be_pulled_is_diagnosed(
    plane: ControlPlane, admin: ApiClient, team: Team
) -> None:
    labels, where = {"app": "manager"}, {"namespace": team.namespace}
    container = {"name": "manager", "image": "registry.example/nobodys:1"}
    spec = {"containers": [container], "schedulerName": "nobody"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    await admin.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "manager", **where},
            "spec": {
                "replicas": 2,
                "paused": True,  # its only pod is the one below
                "selector": {"matchLabels": labels},
                "template": template,
            },
        }
    )
    pod = {**template, "apiVersion": "v1", "kind": "Pod"}
    await admin.create({**pod, "metadata": {"name": "one", "labels": labels, **where}})
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    of_container = {**container, "ready": False, "restartCount": 0, "imageID": "", "state": state}
    path = f"/api/v1/namespaces/{team.namespace}/pods/one/status"
    change = {"status": {"containerStatuses": [of_container]}}
    await admin.request("PATCH", path, body=change, content_type=MERGE)

    flags = ("--kubeconfig", plane.kubeconfig, "--timeout", "1", "--namespace", team.namespace)
    message = await error_output("check", *flags, "--manager", f"{team.namespace}/manager")
    assert message == (
        f"after 1 s: the manager is not running: Deployment {team.namespace}/manager has 0 of 2 "
        "replicas ready: pod one, container manager: ImagePullBackOff: Back-off pulling image"
    )
