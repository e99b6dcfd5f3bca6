"""A real API server takes all that is rendered, in dry runs, and finds the pods restricted."""

from pathlib import Path

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.chart.test_objects import FOREIGN, pod_of
from tests.integration.chart.test_runtimes import ALL, runtimes_of
from tests.integration.chart.value_sets import CELLS, TEAMS
from tests.support.helm import NAMESPACE, Object, named, render

DRY_RUN = {"dryRun": "All", "fieldManager": "helm", "fieldValidation": "Strict"}
RESTRICTED = "pod-security.kubernetes.io/enforce"


async def create_namespaces(api: ApiClient) -> None:
    for name in (NAMESPACE, *TEAMS):
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def dry_run(api: ApiClient, manifest: Object) -> Object:
    """As helm would apply the object; raises ApiError if the server does not want it."""
    return await api.request(
        "PATCH",
        await api.path_of(manifest),
        query=DRY_RUN,
        body=manifest,
        content_type="application/apply-patch+yaml",
    )


async def test_server_accepts_every_object(api: ApiClient, objects: list[Object]) -> None:
    await create_namespaces(api)
    for each in objects:
        if each["apiVersion"] in FOREIGN or each["kind"] == "CustomResourceDefinition":
            continue
        try:
            await dry_run(api, each)
        except ApiError as error:
            pytest.fail(f"{each['kind']} {each['metadata']['name']}: {error}")


async def test_leader_election_can_be_disabled(
    api: ApiClient, namespace: str, helm_program: Path
) -> None:
    """The server must forget how pods were replaced one by one before."""
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    applied: Object = {}
    for cell in ("defaults", "alone"):
        deployment = named(render(helm_program, CELLS[cell], namespace=namespace), "Deployment")
        applied = await api.apply(deployment)
    assert applied["spec"]["strategy"] == {"type": "Recreate"}


async def test_server_accepts_the_crds(api: ApiClient, helm_program: Path) -> None:
    for each in render(helm_program):
        if each["kind"] == "CustomResourceDefinition":
            applied = await dry_run(api, each)
            assert applied["spec"]["versions"] == each["spec"]["versions"]


async def test_server_accepts_the_runtimes(api: ApiClient, helm_program: Path) -> None:
    for values in (ALL, CELLS["mirror"]):
        for each in runtimes_of(render(helm_program, values)).values():
            await dry_run(api, each)


async def test_the_pods_may_run_where_pods_are_restricted(
    api: ApiClient, namespace: str, helm_program: Path
) -> None:
    labels = {RESTRICTED: "restricted", f"{RESTRICTED}-version": "latest"}
    metadata = {"name": namespace, "labels": labels}
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    account = {"name": "default", "namespace": namespace}  # no controller creates it here
    await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    objects = render(helm_program, {"crds": {"keep": False}})
    pods = [spec for each in objects if (spec := pod_of(each)) is not None]
    assert len(pods) == 3  # the manager's and the hooks'

    async def is_restricted() -> bool:  # admission receives the label through a watch
        loose = {**pods[0], "securityContext": {}}
        return await apply_with(api, namespace, 0, loose) is not None

    await until(is_restricted, within=30, what="the namespace being restricted")
    for number, spec in enumerate(pods):
        assert await apply_with(api, namespace, number, spec) is None
        loose = {**spec, "securityContext": {}}
        assert "violates PodSecurity" in str(await apply_with(api, namespace, number, loose))


async def test_pods_of_the_runtimes_are_admitted_at_the_baseline_level(
    api: ApiClient, namespace: str, helm_program: Path
) -> None:
    metadata = {"name": namespace, "labels": {RESTRICTED: "baseline"}}
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    account = {"name": "default", "namespace": namespace}
    await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    pods = [
        # JobSet adds the volume of the initializers' claim.
        {"restartPolicy": "Never", "volumes": [{"name": "initializer", "emptyDir": {}}]}
        | job["template"]["spec"]["template"]["spec"]
        for each in runtimes_of(render(helm_program, ALL)).values()
        for job in each["spec"]["template"]["spec"]["replicatedJobs"]
    ]

    async def is_baseline() -> bool:  # admission receives the label through a watch
        return await apply_with(api, namespace, 0, {**pods[0], "hostNetwork": True}) is not None

    await until(is_baseline, within=30, what="the namespace being at the baseline level")
    refused = [await apply_with(api, namespace, number, spec) for number, spec in enumerate(pods)]
    assert [each for each in refused if each is not None] == []


async def apply_with(api: ApiClient, namespace: str, number: int, spec: Object) -> ApiError | None:
    """Why the server does not take the pod."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "namespace": namespace},
        "spec": {**spec, "serviceAccountName": "default"},
    }
    path = f"/api/v1/namespaces/{namespace}/pods"
    try:
        await api.request("POST", path, query={"dryRun": "All"}, body=pod)
    except ApiError as error:
        return error
    return None
