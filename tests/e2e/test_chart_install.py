"""The chart, installed by helm: its manager lives on exactly the rights that it is granted.

The manager runs as two processes, with the arguments, ConfigMaps and ServiceAccount of the
Deployment that is in the cluster. The API server calls it by its Service and tells in its audit log
what it was asked for: nothing may have been refused, and no right may be left over.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.controllers.bundled_runtime_steps import bundled_runtime
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.components.jobset import PROBE as JOB_SET_PROBE
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.webhooks.registration import webhook_path
from tests.integration.controllers.team import IN_USE, conditions_of, finalizers
from tests.support.audit import permissions_of, refused
from tests.support.installations import (
    DEPLOYMENT,
    MANAGER,
    Cluster,
    Ports,
    account_of,
    called_tokens,
    free_ports,
    holder,
    hook,
    remove_all,
    replicas,
    requests_by,
    run_as_kubelet,
)
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime, train_job
from tests.support.releases import (
    CHART,
    NAME,
    NAMESPACE,
    Release,
    record_size,
    token,
)
from tests.support.reviews import Review, review
from tests.support.scenarios import (
    FETCHING,
    LASTING,
    WITH_INITIALIZERS,
    Scenario,
    disk,
    keep_recreating_jobset,
    on_nodes,
)
from tests.support.trainjobs import (
    END_TO_END_TIMEOUT,
    FAILS,
    ClusterTeam,
    one_try_runtime,
    pods_with,
    summary,
)
from tests.support.webhooks import (
    CONFIGURATION_PATH,
    MERGE,
    MUTATING_PATH,
    SECRET_PATH,
    admission_client_for,
    wait_until_called,
)

LARGEST_RECORD = 500_000  # bytes; etcd takes a MiB
READER = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
FAILING: Mapping[str, Any] = {"podTemplateOverrides": pods_with(labels=FAILS)}
LIFECYCLES = {
    "torch": Scenario("torch-distributed", {"node": 2}, spec=on_nodes(2)),
    "llama-1b": Scenario("torchtune-llama3.2-1b", WITH_INITIALIZERS, spec=FETCHING),
    "llama-3b": Scenario("torchtune-llama3.2-3b", WITH_INITIALIZERS),
    "qwen": Scenario("torchtune-qwen2.5-1.5b", WITH_INITIALIZERS),
    "deepspeed": Scenario("deepspeed-distributed", {"launcher": 1, "node": 2}, spec=on_nodes(3)),
    "mlx": Scenario("mlx-distributed", {"launcher": 1, "node": 1}, spec=on_nodes(2)),
    "plain": Scenario("plain", {"node": 2}, spec=on_nodes(2)),
}
LIMIT_RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "defaults"},
    "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "250m"}}]},
}
RUNTIMES = sorted(life.runtime for life in LIFECYCLES.values())


@dataclass(frozen=True)
class Installed:
    """The operator, installed and running."""

    release: Release
    ports: Sequence[Ports]
    managers: Sequence[ManagerProcess]
    cluster: Cluster
    audited_from: int  # the byte of the audit log at which the installation began


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(chart_cluster: Cluster, helm_program: Path) -> AsyncIterator[Installed]:
    """The chart with its default values, but for the ports and one who may read the metrics."""
    release = Release(helm_program, chart_cluster.plane, chart_cluster.home)
    audited_from = chart_cluster.plane.audit_log.stat().st_size
    try:
        with free_ports(2) as ports:
            values = {**ports[0].values(), "logLevel": "debug"}
            values["metrics"] = {**values["metrics"], "readers": [READER]}
            await release.install(CHART, "--wait", values=values)
            async with replicas(chart_cluster, ports) as managers:
                yield Installed(release, ports, managers, chart_cluster, audited_from)
    finally:
        async with chart_cluster.plane.client() as api:
            await remove_all(release, api)


@pytest.fixture
def control_plane(watched_chart_plane: ControlPlane) -> ControlPlane:
    """The cluster of charts, for the fixtures of all tests."""
    return watched_chart_plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lifecycle_namespace(installed: Installed) -> str:
    """Where a TrainJob runs on each shipped runtime, all at once."""
    plane = installed.cluster.plane
    async with plane.client() as api:
        team = ClusterTeam(api, await plane.create_namespace(api))
        await wait_until_shipped(api)
        for name in ("llama-1b", "llama-3b", "qwen"):
            await api.apply(disk(f"{team.namespace}-{name}"))
        for name, life in LIFECYCLES.items():
            await life.begin(team, name)
    return team.namespace


@pytest.fixture
def team(api: ApiClient, namespace: str, lifecycle_namespace: str) -> ClusterTeam:
    """A namespace of the test's own."""
    return ClusterTeam(api, namespace)


async def wait_until_shipped(api: ApiClient) -> list[Object]:
    """Wait for the runtimes of the chart."""

    async def all_exist() -> list[Object] | None:
        path = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
        found: list[Object] = (await api.get(path))["items"]
        return found if len(found) >= len(RUNTIMES) else None

    return await until(
        all_exist, within=END_TO_END_TIMEOUT, what="the runtimes of the chart being there"
    )


async def test_helm_release_is_deployed_and_its_record_is_small(
    installed: Installed, api: ApiClient
) -> None:
    assert f"{NAME}\t{NAMESPACE}" in await installed.release("list")
    deployment = await api.get(DEPLOYMENT)
    assert deployment["status"]["availableReplicas"] == deployment["spec"]["replicas"] == 2
    [record] = await installed.release.records(api)
    assert record_size(record) < LARGEST_RECORD


async def test_the_manager_has_applied_the_runtimes(installed: Installed, api: ApiClient) -> None:
    found = await wait_until_shipped(api)
    assert sorted(each["metadata"]["name"] for each in found) == RUNTIMES
    labels = {each["metadata"]["labels"]["trainer.kubeflow.org/managed-by"] for each in found}
    assert labels == {"kftrainer"}


async def test_certificate_exists_and_is_trusted(installed: Installed, api: ApiClient) -> None:
    secret = await api.get(SECRET_PATH)
    assert {"ca.crt", "ca.key", "tls.crt", "tls.key"} <= {*secret["data"]}
    assert await bundles(api) == {secret["data"]["ca.crt"]}


@pytest.mark.parametrize("how", ["emptied", "deleted"])
async def test_lost_certificate_is_recreated(
    installed: Installed, api: ApiClient, how: str
) -> None:
    before = (await api.get(SECRET_PATH))["data"]
    if how == "deleted":
        await api.delete(SECRET_PATH)
    else:
        await api.request("PATCH", SECRET_PATH, body={"data": None}, content_type=MERGE)

    async def is_trusted() -> bool:
        secret = await api.get_or_none(SECRET_PATH)
        authority = (secret or {}).get("data", {}).get("ca.crt", before["ca.crt"])
        return authority != before["ca.crt"] and await bundles(api) == {authority}

    await until(is_trusted, within=END_TO_END_TIMEOUT, what="a new certificate that is believed")
    await wait_until_called(installed.cluster.plane)


async def bundles(api: ApiClient) -> set[str]:
    """The CA bundles that the API server trusts when it calls the webhooks."""
    found = [await api.get(path) for path in (CONFIGURATION_PATH, MUTATING_PATH)]
    return {each["clientConfig"]["caBundle"] for both in found for each in both["webhooks"]}


async def test_suspended_job_resumes_with_the_same_job_set(team: ClusterTeam) -> None:
    await keep_recreating_jobset(team)


async def test_a_failing_job_fails(team: ClusterTeam) -> None:
    await team.create(one_try_runtime())
    await team.create_job("bad", "once", **FAILING)
    assert summary(await team.wait_until_ended("bad", "Failed")) == {"Failed": "True/FailedJobs"}


@pytest.mark.parametrize("kind", ["PodGroup", "Volcano"])
async def test_a_gang_has_a_pod_group_which_changes_with_it(team: ClusterTeam, kind: str) -> None:
    name = {"PodGroup": "gang", "Volcano": "volcano"}[kind]
    await team.create_runtime(name)
    await team.create_job(runtime=name, suspend=True, **on_nodes(2))
    group = await team.wait_until_exists(kind)
    assert group["spec"]["minMember"] == 2
    await team.create(LIMIT_RANGE)

    async def has_grown() -> bool:
        return (await team.get(kind))["spec"].get("minResources") == {"cpu": "500m"}

    await until(has_grown, within=END_TO_END_TIMEOUT, what="a PodGroup that requests the defaults")
    await team.suspend(suspend=False)
    await team.wait_until_ended("train")


# By the kind of an object of another client: the runtime of a TrainJob that needs one of the
# same name, and the name.
FOREIGN = {
    "v1/Secret": ("mpi", "train-mpi-ssh-auth"),
    "v1/ConfigMap": ("mpi", "train-mpi-hostfile"),
    "scheduling.x-k8s.io/v1alpha1/PodGroup": ("gang", "train"),
    "scheduling.volcano.sh/v1beta1/PodGroup": ("volcano", "train"),
    "jobset.x-k8s.io/v1alpha2/JobSet": ("torch", "train"),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_objects_of_other_owners_are_not_modified(team: ClusterTeam, kind: str) -> None:
    name, existing_name = FOREIGN[kind]
    api_version, _, kind = kind.rpartition("/")
    spec = {"spec": JOB_SET_PROBE["spec"]} if kind == "JobSet" else {}
    foreign = {"apiVersion": api_version, "kind": kind, "metadata": {"name": existing_name}, **spec}
    await team.create(foreign)
    await team.create_runtime(name)
    await team.create_job(runtime=name)
    job = await team.wait_for_condition("Blocked", "NameTaken")
    assert existing_name in conditions_of(job)["Blocked"]["message"]


async def test_job_in_a_protected_namespace_is_blocked_with_the_denial(
    installed: Installed, api: ApiClient
) -> None:
    """A pod there could use ServiceAccounts that control the cluster."""
    team = ClusterTeam(api, "kube-system")
    await team.create_runtime("torch")
    await team.create_job("protected", runtime="torch")
    try:
        job = await team.wait_for_condition("Blocked", "ResourcesCreationFailed", name="protected")
        message = conditions_of(job)["Blocked"]["message"]
        assert "the manager may not write objects of TrainJobs in this namespace" in message
        assert await team.find("JobSet", "protected") is None
    finally:
        await team.delete("TrainJob", "protected")
        await team.delete("TrainingRuntime", "torch")


@pytest.mark.parametrize("name", LIFECYCLES)
async def test_a_job_on_a_shipped_runtime_runs_to_its_end(
    api: ApiClient, lifecycle_namespace: str, name: str
) -> None:
    lifecycle_team = ClusterTeam(api, lifecycle_namespace)
    assert summary(await lifecycle_team.wait_until_ended(name)) == {
        "Complete": "True/AllJobsCompleted"
    }
    assert await lifecycle_team.pod_counts(name) == LIFECYCLES[name].pods


async def test_invalid_jobs_are_rejected_after_a_live_read(team: ClusterTeam) -> None:
    user = admission_client_for(team.api)

    async def denied(manifest: Object) -> str:
        metadata = {**manifest["metadata"], "namespace": team.namespace}
        return (await user.create({**manifest, "metadata": metadata})).denial

    for kind in ("TrainingRuntime", "ClusterTrainingRuntime"):
        reference = {"kind": kind, "name": "nowhere"}
        assert "nowhere" in await denied(train_job(runtimeRef=reference))
    gang = runtime("gang", podGroupPolicy={"volcano": {}})
    pod = gang["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["priorityClassName"] = "no-such-class"
    await team.create(gang)
    of_gang = {"kind": "TrainingRuntime", "name": "gang"}
    assert "no-such-class" in await denied(train_job(runtimeRef=of_gang))

    await team.create(runtime("torch"))
    await team.create_job(**LASTING)
    await team.wait_until_running("train", 1)
    job = train_job("train")
    job["metadata"]["namespace"] = team.namespace
    outcome = await user.patch(job, {"spec": {"podTemplateOverrides": []}})
    assert "podTemplateOverrides" in outcome.denial


async def test_client_without_the_path_token_gets_no_information_about_runtimes(
    installed: Installed, team: ClusterTeam
) -> None:
    await team.create(runtime("torch"))
    reviews = [review_of(team.namespace, name) for name in ("torch", "nowhere")]
    [token] = await called_tokens(team.api)
    async with aiohttp.ClientSession() as session:
        for ports in installed.ports:
            path = f"{ports.webhook_url}{webhook_path(TRAIN_JOBS)}"
            for wrong_path in ("", "/", "/plain", f"/{token[:-1]}", f"/{'0' * len(token)}"):
                answers = [await answer_of(session, path + wrong_path, each) for each in reviews]
                assert answers == [(404, "404 page not found\n")] * 2, wrong_path
            # The same reviews with the token: the difference must not be visible to other clients.
            answered = [await answer_of(session, f"{path}/{token}", each) for each in reviews]
            results = [json.loads(text)["response"]["allowed"] for _, text in answered]
            assert results == [True, False]
    missing = train_job(runtimeRef={"kind": "TrainingRuntime", "name": "nowhere"})
    missing["metadata"]["namespace"] = team.namespace
    assert "nowhere" in (await admission_client_for(team.api).create(missing)).denial


def review_of(namespace: str, runtime_name: str) -> Review:
    """The review of a TrainJob with this runtime, as an API server would send it."""
    job = train_job(runtimeRef={"kind": "TrainingRuntime", "name": runtime_name})
    job["metadata"]["namespace"] = namespace
    return review(job)


async def answer_of(session: aiohttp.ClientSession, url: str, body: Review) -> tuple[int, str]:
    """What the webhook server answers."""
    async with session.post(url, json=body, ssl=False) as response:
        return response.status, await response.text()


async def test_runtime_in_use_is_kept_until_the_last_job_is_deleted(team: ClusterTeam) -> None:
    await team.create(runtime("torch"))
    await team.create_job(suspend=True)
    await team.wait_until_in_use()
    await team.delete("TrainingRuntime", "torch")
    assert (await team.get("TrainingRuntime", "torch"))["metadata"]["deletionTimestamp"]
    await team.delete("TrainJob")
    await team.wait_until_deleted("TrainingRuntime", "torch")


async def test_deleted_shipped_runtime_in_use_is_kept_and_recreated(
    api: ApiClient, lifecycle_namespace: str
) -> None:
    lifecycle_team = ClusterTeam(api, lifecycle_namespace)
    await lifecycle_team.wait_until_ended("plain")
    path = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/plain"

    async def lease() -> Object | None:
        found = await api.get(path)
        return found if IN_USE in finalizers(found) else None

    before = await until(lease, within=END_TO_END_TIMEOUT, what="the finalizer of a runtime in use")
    await api.delete(path)
    await lifecycle_team.delete("TrainJob", "plain")

    async def is_another() -> bool:
        found = await api.get_or_none(path)
        return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

    await until(
        is_another, within=END_TO_END_TIMEOUT, what="the manager applying the runtime again"
    )


async def test_metrics_are_served_to_the_users_named_in_the_chart(
    installed: Installed, api: ApiClient, namespace: str
) -> None:
    readers = {
        200: await token(api, READER["name"], READER["namespace"]),
        403: await token(api, "default", namespace),
        401: "made up",
    }
    async with aiohttp.ClientSession() as session:
        for ports in installed.ports:
            for status, shown in readers.items():
                header = {"Authorization": f"Bearer {shown}"}
                async with session.get(ports.metrics_url, headers=header, ssl=False) as page:
                    assert page.status == status
                    output = await page.text()
                    assert ("kftrainer_build_info" in output) == (status == 200)


async def test_helm_test_runs_a_successful_check(installed: Installed, api: ApiClient) -> None:
    check = hook(await installed.release.objects("hooks"), "test")
    async with asyncio.TaskGroup() as both:
        testing = both.create_task(installed.release("test", NAME))
        printed = await run_as_kubelet(installed.cluster, api, check)
    assert "Phase:          Succeeded" in testing.result()
    assert "rejects an invalid TrainJob" in printed
    assert "changes TrainJobs to canonical form" in printed
    assert all(name in printed for name in RUNTIMES)


async def test_runtime_removed_from_the_chart_is_deleted(
    installed: Installed, api: ApiClient
) -> None:
    former = bundled_runtime(runtime("former", "ClusterTrainingRuntime")).manifest
    path = await api.path_of(await api.create(former))

    async def is_deleted() -> bool:
        return await api.get_or_none(path) is None

    await until(
        is_deleted, within=END_TO_END_TIMEOUT, what="the end of a runtime that is in no file"
    )


async def test_standby_takes_over_from_a_leader_that_stops(
    installed: Installed, team: ClusterTeam
) -> None:
    first = await holder(team.api)
    await team.create(runtime("torch"))

    def leads(manager: ManagerProcess) -> bool:
        return any(each["identity"] == first for each in manager.log_entries("lease_acquired"))

    standby, leader = sorted(installed.managers, key=leads)
    await leader.stop()

    async def has_changed() -> bool:
        return await holder(team.api) not in ("", first)

    await until(has_changed, within=END_TO_END_TIMEOUT, what="the standby leading")
    await wait_until_called(installed.cluster.plane)  # no connection to who is gone is left
    await team.create_job()
    await team.wait_until_ended("train")
    assert standby.log_entries("object_created")


async def test_no_right_was_missing_and_none_is_left_over(
    installed: Installed, api: ApiClient
) -> None:
    """The last one: all that the manager does has been done."""
    objects = [*await installed.release.objects(), *await installed.release.objects("hooks")]
    log = installed.cluster.plane.audit_log
    for account in (MANAGER, account_of(hook(objects, "test"))):
        rights = permissions_of(objects, account, NAMESPACE)
        assert rights
        requests = await requests_by(account, log, installed.audited_from, rights)
        assert not refused(requests), account
