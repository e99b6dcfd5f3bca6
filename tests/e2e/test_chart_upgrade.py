"""Releases come and go: upgrade, rollback, uninstall, and an upgrade from Kubeflow Trainer itself.

Meanwhile TrainJobs continue, and objects of users are kept unless they request otherwise.
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.webhook.path_tokens import TOKEN
from tests.support.audit import permissions_of, refused
from tests.support.helm import WITHOUT_CRDS, merged
from tests.support.installations import (
    CRDS,
    DEPLOYMENT,
    KINDS,
    Cluster,
    Ports,
    account_of,
    called_tokens,
    forget_kinds,
    hook,
    replicas,
    requests_by,
    run_as_kubelet,
)
from tests.support.objects import API, runtime, train_job
from tests.support.releases import CHART, NAME, NAMESPACE, HelmError, Release
from tests.support.trainjobs import (
    COMPLETES_LATE,
    END_TO_END_TIMEOUT,
    ClusterTeam,
    pods_with,
    summary,
)
from tests.support.upstream_chart import upstream_chart, upstream_runtimes
from tests.support.webhooks import CONFIGURATION_PATH, MERGE, MUTATING_PATH, SECRET_PATH

LASTING: Mapping[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}
SHIPPED = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
RUNTIME_FILES = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}-runtimes"
PLAIN_RUNTIME_REF = {"kind": "ClusterTrainingRuntime", "name": "plain"}
RETIRED = """
  retired.yaml: |
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: ClusterTrainingRuntime
    metadata:
      name: retired
    spec:
      mlPolicy: {numNodes: 1}
      template:
        spec:
          replicatedJobs:
          - name: node
            template:
              metadata:
                labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}
              spec:
                template:
                  spec:
                    containers: [{name: node, image: "old:1"}]
"""


def edit(file: Path, *changes: tuple[str, str]) -> None:
    """Replace texts of a file, each of which must be in it once."""
    text = file.read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{file} has not once: {old}"
        text = text.replace(old, new)
    file.write_text(text)


def older_chart(folder: Path) -> Path:
    """The chart as an earlier release might have been.

    It knows less of TrainJobs, ships a runtime more and another `plain`, and configures otherwise.
    It has no mutating webhook.
    """
    chart = folder / "older"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "webhook" / "mutating.yaml").unlink()
    now = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]
    edit(chart / "Chart.yaml", (f"\nversion: {now}", "\nversion: 0.0.9"))
    edit(chart / "values.yaml", ("burst: 100", "burst: 90"), ("tag: 3.13-slim", "tag: 3.12-slim"))
    edit(
        chart / "templates" / "runtimes" / "configmap.yaml",
        ("{{- . | nindent 2 }}", "{{- . | nindent 2 }}" + RETIRED.rstrip()),
    )
    file = chart / "files" / "crds" / "trainjobs.trainer.kubeflow.org.yaml"
    definition = yaml.safe_load(file.read_text())
    [version] = definition["spec"]["versions"]
    version["additionalPrinterColumns"].pop()
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["initializer"]
    metadata = definition.pop("metadata")  # which the template holds as text
    head = f"metadata:\n  name: {metadata['name']}\n"
    file.write_text(head + yaml.safe_dump(definition))
    return chart


@pytest.fixture
def control_plane(watched_chart_plane: ControlPlane) -> ControlPlane:
    """The cluster of charts, for the fixtures of all tests."""
    return watched_chart_plane


@pytest.fixture
def team(api: ApiClient, namespace: str) -> ClusterTeam:
    """A namespace of the test's own."""
    return ClusterTeam(api, namespace)


async def wait_until_shipped(
    api: ApiClient, *present: str, is_deleted: Sequence[str] = ()
) -> dict[str, Object]:
    """Wait until these runtimes are there, and those are not."""

    async def matches() -> dict[str, Object] | None:
        found = {each["metadata"]["name"]: each for each in (await api.get(SHIPPED))["items"]}
        return found if {*present} <= {*found} and not {*is_deleted} & {*found} else None

    description = f"{present} being there and {is_deleted} being gone"
    return await until(matches, within=END_TO_END_TIMEOUT, what=description)


async def wait_for_image(api: ApiClient, name: str, ending: str) -> None:
    """Wait until the runtime has an image whose name ends like this."""

    async def has_it() -> bool:
        return image_of((await wait_until_shipped(api, name))[name]).endswith(ending)

    await until(
        has_it, within=END_TO_END_TIMEOUT, what=f"the runtime {name} with an image {ending}"
    )


async def wait_until_exactly_shipped(api: ApiClient, *names: str) -> None:
    """Wait until the specs of these runtimes are those of the release, with nothing added."""
    files = (await api.get(RUNTIME_FILES))["data"]
    wanted = {name: await stored_spec(api, yaml.safe_load(files[f"{name}.yaml"])) for name in names}

    async def are_shipped() -> bool:
        found = await wait_until_shipped(api, *names)
        return {name: found[name]["spec"] for name in names} == wanted

    await until(are_shipped, within=END_TO_END_TIMEOUT, what=f"{names} being as they are shipped")


async def stored_spec(api: ApiClient, document: Object) -> Object:
    """The runtime's spec with the defaults of the API server."""
    copy = {**document, "metadata": {**document["metadata"], "name": "any"}}
    stored = await api.request("POST", SHIPPED, body=copy, query={"dryRun": "All"})
    spec: Object = stored["spec"]
    return spec


def image_of(runtime: Object) -> str:
    """The image of the runtime's first container."""
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
    image: str = job["template"]["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


async def bundles(api: ApiClient, path: str = CONFIGURATION_PATH) -> set[str]:
    """The CA bundles that the API server trusts when it calls the webhooks."""
    found = await api.get(path)
    return {each["clientConfig"].get("caBundle", "") for each in found["webhooks"]}


async def start_long_job(team: ClusterTeam, **spec: Any) -> dict[str, str]:
    """A TrainJob that runs for an hour, and its objects."""
    await team.create_job("lasting", **{**LASTING, "runtimeRef": PLAIN_RUNTIME_REF, **spec})
    await team.wait_until_running("lasting", 1)
    return await parts(team)


async def parts(team: ClusterTeam) -> dict[str, str]:
    """The objects of the TrainJob with their UIDs: equal as long as none was re-created."""
    job_set = await team.get("JobSet", "lasting")
    [pod] = await team.pods("lasting")
    assert pod["status"]["phase"] == "Running"
    return {each["metadata"]["uid"]: each["metadata"]["name"] for each in (job_set, pod)}


async def crd(api: ApiClient) -> Object:
    """The CustomResourceDefinition of TrainJobs as stored."""
    [version] = (await api.get(f"{CRDS}/trainjobs.trainer.kubeflow.org"))["spec"]["versions"]
    found: Object = version
    return found


async def pod_annotations(api: ApiClient) -> dict[str, str]:
    """The annotations of the manager's pods, by which they are replaced if something changed."""
    deployment = await api.get(DEPLOYMENT)
    found: dict[str, str] = deployment["spec"]["template"]["metadata"]["annotations"]
    return found


async def test_an_upgrade_and_a_rollback(
    release: Release,
    chart_cluster: Cluster,
    ports: Sequence[Ports],
    values: dict[str, Any],
    team: ClusterTeam,
    tmp_path: Path,
) -> None:
    api = team.api
    await release.install(older_chart(tmp_path), values=values)
    old, new = ports
    async with replicas(chart_cluster, [old]) as [before]:
        await wait_until_shipped(api, "retired", "mlx-distributed")
        await wait_for_image(api, "plain", ":3.12-slim")
        long_job = await start_long_job(team)
        old_crd, annotations, trusted = (
            await crd(api),
            await pod_annotations(api),
            await bundles(api),
        )
        assert trusted != {""}
        in_path = await called_tokens(api)
        assert in_path != {""}

        without = {"mlxDistributed": {"enabled": False}}
        await release.upgrade(values={**values, "runtimes": without})
        assert await bundles(api) == trusted
        assert await called_tokens(api) == in_path
        changed = await pod_annotations(api)
        assert {key for key in changed if changed[key] != annotations[key]} == {
            "checksum/config",
            "checksum/runtimes",
        }
        updated_crd = await crd(api)
        assert (
            len(updated_crd["additionalPrinterColumns"])
            == len(old_crd["additionalPrinterColumns"]) + 1
        )
        # The API server may call the new webhook already, and replicas of both releases.
        await team.create_job("between", runtimeRef=PLAIN_RUNTIME_REF, suspend=True)
        async with replicas(chart_cluster, [new], other_ports=[old]):
            assert await bundles(api, MUTATING_PATH) == trusted
            await before.stop()
            await wait_until_shipped(api, is_deleted=["retired", "mlx-distributed"])
            await wait_for_image(api, "plain", ":3.13-slim")
            assert await parts(team) == long_job

    await release("rollback", NAME)
    assert await api.get_or_none(MUTATING_PATH) is None
    assert await bundles(api) == trusted
    assert await called_tokens(api) == in_path
    assert (await crd(api))["additionalPrinterColumns"] == old_crd["additionalPrinterColumns"]
    async with replicas(chart_cluster, [old]):
        await wait_until_shipped(api, "retired", "mlx-distributed")
        await wait_for_image(api, "plain", ":3.12-slim")
        assert await parts(team) == long_job


async def test_uninstall_keeps_user_objects_by_default(
    release: Release,
    chart_cluster: Cluster,
    ports: Sequence[Ports],
    values: dict[str, Any],
    team: ClusterTeam,
) -> None:
    api, plane = team.api, chart_cluster.plane
    await release.install(values=values)
    async with replicas(chart_cluster, ports[:1]):
        await wait_until_shipped(api, "plain", "torch-distributed")
        long_job = await start_long_job(team)
    await release.uninstall()
    for path in (DEPLOYMENT, CONFIGURATION_PATH, MUTATING_PATH, SECRET_PATH):
        assert await api.get_or_none(path) is None
    await wait_until_shipped(api, "plain", "torch-distributed")
    assert await parts(team) == long_job

    # Only the same name and namespace are needed: kept objects still record their release.
    slowly = {"podAnnotations": COMPLETES_LATE}  # until the test ends the hook's pod
    await release.install(values={**values, "crds": {"keep": False}, "hooks": slowly})
    hooks = await release.objects("hooks")
    purge = hook(hooks, "pre-delete")
    start = plane.audit_log.stat().st_size
    async with replicas(chart_cluster, ports[:1]) as [manager]:
        await team.suspend(suspend=True, name="lasting")
        await team.wait_until_children_deleted("lasting", ["Pod"])
        await team.create(runtime("own"))
        await team.create_job("own", "own", suspend=True)
        await team.wait_until_in_use("own")
        async with asyncio.TaskGroup() as both:
            both.create_task(release.uninstall())
            printed = await run_as_kubelet(chart_cluster, api, purge)
            manager.kill()  # with its rights
    assert "TrainJob" in printed
    for plural in KINDS:
        assert await api.get_or_none(f"{CRDS}/{plural}.trainer.kubeflow.org") is None

    account = account_of(purge)
    rights = permissions_of(hooks, account, NAMESPACE)
    assert rights
    assert not refused(await requests_by(account, plane.audit_log, start, rights))


async def test_path_token_is_generated_once_for_each_installation(
    release: Release, api: ApiClient
) -> None:
    """No manager runs here, so the webhook is optional."""
    optional = merged(WITHOUT_CRDS, {"webhook": {"failurePolicy": "Ignore"}})
    unschedulable = {**optional, "nodeSelector": {"no-node-has": "this-label"}}
    with pytest.raises(HelmError):  # a first installation that fails
        await release.install(CHART, "--wait", "--timeout=1s", values=unschedulable)
    [token] = await called_tokens(api)
    assert TOKEN.fullmatch(token)
    await release.upgrade(CHART, "--install", values=optional)
    await release.upgrade(CHART, "--reuse-values")
    assert await called_tokens(api) == {token}
    assert token not in await release("get", "values", NAME, "--all")
    assert token not in await release("get", "notes", NAME)

    await release.upgrade(values=merged(optional, {"webhook": {"pathTokens": ["plain"]}}))
    assert await called_tokens(api) == {""}
    await release.upgrade(values=optional)  # it stays disabled until it is enabled again
    assert await called_tokens(api) == {""}
    await release("rollback", NAME, "3")
    assert await called_tokens(api) == {token}

    await release.uninstall()
    await release.upgrade(CHART, "--install", values=optional)
    [other] = await called_tokens(api)
    assert other not in ("", token)


async def test_kubeflow_trainer_is_upgraded_in_place(
    release: Release,
    chart_cluster: Cluster,
    ports: Sequence[Ports],
    values: dict[str, Any],
    team: ClusterTeam,
    tmp_path: Path,
) -> None:
    """As docs/install.md describes it. The original does not run, so its webhook is not called."""
    api = team.api
    await forget_kinds(api)  # that they are in no release is what makes it difficult
    await release.install(
        await upstream_chart(tmp_path),
        "--server-side=false",  # as Helm 3 does it
        values={"webhook": {"failurePolicy": "Ignore"}, "jobset": {"install": False}},
    )
    for plural in KINDS:  # helm looks at their status, which is a moment early
        await api.wait_served(await api.get(f"{CRDS}/{plural}.trainer.kubeflow.org"))
    await api.create(runtime("torch-distributed", "ClusterTrainingRuntime"))
    originals = {**await upstream_runtimes()}
    del originals["torch-distributed"]
    for original in originals.values():
        await api.apply(original)  # by another client, server-side
    await team.create(runtime("own"))
    await team.create_job("waiting", "own", suspend=True)
    reference = {"kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
    await team.create(train_job("begun", runtimeRef=reference, suspend=True))

    await release.upgrade(CHART, "--take-ownership", "--reset-values", values=values)
    assert await called_tokens(api) == {""}  # the original's pods would reject another path
    async with replicas(chart_cluster, ports[:1]):
        edited = (await wait_until_shipped(api, "plain", "torch-distributed"))["torch-distributed"]
        assert image_of(edited) == "trainer"
        # Objects of other clients are not adopted unless requested.
        label = {"metadata": {"labels": {"trainer.kubeflow.org/managed-by": "kftrainer"}}}
        path = await api.path_of(edited | {"apiVersion": API, "kind": "ClusterTrainingRuntime"})
        await api.request("PATCH", path, body=label, content_type=MERGE)
        await wait_for_image(api, "torch-distributed", "-runtime")
        for name in originals:
            await api.request("PATCH", f"{SHIPPED}/{name}", body=label, content_type=MERGE)
        await wait_until_exactly_shipped(api, "torch-distributed", *originals)
        tuned = {"kind": "ClusterTrainingRuntime", "name": "torchtune-llama3.2-1b"}
        await team.create(train_job("tuned", runtimeRef=tuned))
        job_set = await team.wait_until_exists("JobSet", "tuned")
        assert job_set["spec"]["volumeClaimPolicies"]
        assert summary(await team.get("TrainJob", "tuned")) == {}
        for name in ("waiting", "begun"):
            await team.suspend(suspend=False, name=name)
        for name in ("waiting", "begun"):
            assert summary(await team.wait_until_ended(name))["Complete"] == "True/AllJobsCompleted"
    await release.uninstall()
    await wait_until_shipped(api, "torch-distributed")
