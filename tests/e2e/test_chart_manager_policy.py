"""Attacks with the manager's own token: its roles alone allow them, the chart's policies do not.

Requests are dry runs: the API server authorizes and admits them as it would the real ones.
"""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.components.jobset import PROBE as JOB_SET
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.support.installations import CRDS, GROUP, KINDS, MANAGER
from tests.support.objects import API, COLLECTIONS, runtime, train_job
from tests.support.releases import NAME, NAMESPACE, Release, token
from tests.support.webhooks import APPLY, CONFIGURATION_PATH, MERGE, MUTATING_PATH, SECRET_PATH

WITHIN = 30.0
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
TOKEN = {"type": "kubernetes.io/service-account-token"}
OF_THE_CLUSTER = {"kubernetes.io/service-account.name": "clusterrole-aggregation-controller"}
SSH_KEYS = {"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": "a2V5"}}
OWNER = {
    "apiVersion": API,
    "kind": "TrainJob",
    "name": "train",
    "uid": "b7f8e0a6-6c0d-4b8e-9a57-6a3a9d1d2c11",
    "controller": True,
    "blockOwnerDeletion": True,
}
OTHER_OWNER = {**OWNER, "name": "other", "uid": "0f8fad5b-d9cb-469f-a165-70867728950e"}
REVISION_LABEL = {"trainer.kubeflow.org/runtime-kind": "TrainingRuntime"}
POD_GROUPS = ("scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1")


@pytest.fixture
def control_plane(watched_chart_plane: ControlPlane) -> ControlPlane:
    """The cluster of charts, for the fixtures of all tests."""
    return watched_chart_plane


@dataclass(frozen=True)
class Attempt:
    """One request."""

    method: str
    path: str
    body: Mapping[str, Any] = field(default_factory=dict)
    content_type: str = "application/json"


def an_object(api_version: str, kind: str, name: str, *owners: Object, **rest: Any) -> Object:
    metadata: Object = {"name": name, **rest.pop("metadata", {})}
    if owners:
        metadata["ownerReferences"] = [*owners]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def core(namespace: str, plural: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/{plural}/{name}".rstrip("/")


def secret(name: str, *owners: Object, **rest: Any) -> Object:
    return an_object("v1", "Secret", name, *owners, **rest)


def created(namespace: str, manifest: Object, plural: str = "secrets") -> Attempt:
    group = manifest["apiVersion"]
    root = "/api" if "/" not in group else "/apis"
    return Attempt("POST", f"{root}/{group}/namespaces/{namespace}/{plural}", manifest)


def patched(path: str, change: Object) -> Attempt:
    return Attempt("PATCH", path, change, MERGE)


def secret_attacks(here: str) -> dict[str, Attempt]:
    any_account = {**TOKEN, "metadata": {"annotations": OF_THE_CLUSTER}}
    as_default = {**TOKEN, "metadata": {"annotations": {"kubernetes.io/service-account.name": "x"}}}
    node = {"type": "bootstrap.kubernetes.io/token"}
    foreign_secret = core(here, "secrets", "theirs")
    return {
        "token of any account": created("kube-system", secret("a", **any_account)),
        "token with a TrainJob": created("kube-system", secret("a", OWNER, **any_account)),
        "token of a tenant": created(here, secret("a", OWNER, **as_default)),
        "token of a node": created("kube-system", secret("bootstrap-token-a", OWNER, **node)),
        "Secret of another type": created(here, secret("a", OWNER, type="Opaque")),
        "Secret without a TrainJob": created(here, secret("a", **SSH_KEYS)),
        "Secret with another owner": created(
            here, secret("a", {**OWNER, "apiVersion": "example.com/v1"}, **SSH_KEYS)
        ),
        "certificate elsewhere": created(here, secret(SECRET_PATH.rpartition("/")[2])),
        "foreign Secret changed": patched(foreign_secret, {"data": {"key": "bXk="}}),
        "foreign Secret taken over": patched(
            foreign_secret, {"metadata": {"ownerReferences": [OWNER]}}
        ),
        "foreign Secret read": patched(foreign_secret, {}),
        "foreign Secret applied": Attempt(
            "PATCH", f"{foreign_secret}?fieldManager=x&force=true", secret("theirs", OWNER), APPLY
        ),
        "given to another TrainJob": patched(
            core(here, "secrets", "keys"), {"metadata": {"ownerReferences": [OTHER_OWNER]}}
        ),
    }


def secret_readings(here: str) -> dict[str, Attempt]:
    """What no role allows; a policy could not deny it."""
    return {
        "a Secret": Attempt("GET", core(here, "secrets", "theirs")),
        "keys": Attempt("GET", core(here, "secrets", "keys")),
        "all Secrets of a namespace": Attempt("GET", core(here, "secrets")),
        "all Secrets": Attempt("GET", "/api/v1/secrets"),
        "changes of Secrets": Attempt("GET", "/api/v1/secrets?watch=true"),
    }


def object_attacks(here: str) -> dict[str, Attempt]:
    config_map = core("kube-system", "configmaps", "theirs")
    return {
        "ConfigMap changed": patched(config_map, {"data": {"a": "b"}}),
        "ConfigMap taken over": patched(config_map, {"metadata": {"ownerReferences": [OWNER]}}),
        "ConfigMap of the cluster": created(
            "kube-system", an_object("v1", "ConfigMap", "aws-auth", OWNER), "configmaps"
        ),
        "JobSet without a TrainJob": created(here, job_set("a"), "jobsets"),
        "JobSet of the cluster": created("kube-system", job_set("a", OWNER), "jobsets"),
        "foreign JobSet deleted": Attempt("DELETE", job_set_path(here, "theirs")),
        **{
            f"gang without a TrainJob, {version}": created(
                here, an_object(version, "PodGroup", "a", spec={"minMember": 1}), "podgroups"
            )
            for version in POD_GROUPS
        },
    }


def job_set_path(namespace: str, name: str) -> str:
    return f"/apis/{JOB_SET['apiVersion']}/namespaces/{namespace}/jobsets/{name}"


def job_set(name: str, *owners: Object) -> Object:
    """Return a suspended JobSet."""
    spec = {**JOB_SET["spec"], "suspend": True}
    return an_object(JOB_SET["apiVersion"], "JobSet", name, *owners, spec=spec)


def runtime_attacks(here: str) -> dict[str, Attempt]:
    own = f"{COLLECTIONS['TrainingRuntime'].format(here)}/theirs"
    shared = f"{COLLECTIONS['ClusterTrainingRuntime']}/theirs"
    spec = {"spec": {"mlPolicy": {"numNodes": 7}}}
    labelled = {"metadata": {"labels": {"trainer.kubeflow.org/managed-by": "kftrainer"}}}
    unlabelled = runtime("a", "ClusterTrainingRuntime")
    return {
        "runtime changed": patched(own, spec),
        "shared runtime changed": patched(shared, spec),
        "shared runtime handed over": patched(shared, labelled),
        "shared runtime deleted": Attempt("DELETE", shared),
        "shared runtime created": Attempt(
            "POST", COLLECTIONS["ClusterTrainingRuntime"], unlabelled
        ),
    }


def revision(name: str, *owners: Object, **labels: str) -> Object:
    metadata = {"labels": labels} if labels else {}
    more = {"revision": 1, "data": {"spec": {}}}
    return an_object("apps/v1", "ControllerRevision", name, *owners, metadata=metadata, **more)


def revision_attacks(here: str) -> dict[str, Attempt]:
    history = f"/apis/apps/v1/namespaces/{here}/controllerrevisions/theirs"
    stateful_set = {**OWNER, "apiVersion": "apps/v1", "kind": "StatefulSet"}
    return {
        "history of a StatefulSet deleted": Attempt("DELETE", history),
        "history of a StatefulSet created": created(
            here, revision("a", stateful_set, **REVISION_LABEL), "controllerrevisions"
        ),
        "revision without the label": created(here, revision("a"), "controllerrevisions"),
    }


def webhook_attacks(configuration: Object) -> dict[str, Attempt]:
    all_objects = [
        {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}
    ]
    foreign: Object = {"clientConfig": {"url": "https://foreign.example/all"}}
    other_service = {"namespace": "default", "name": "other", "port": 443}
    service = configuration["webhooks"][0]["clientConfig"]["service"]
    changes: dict[str, Object] = {
        "url": foreign,
        "path": {"clientConfig": {"service": {**service, "path": "/without-a-token"}}},
        "service": {"clientConfig": {"service": other_service}},
        "rules": {"rules": all_objects},
        "failurePolicy": {"failurePolicy": "Fail"},
        "namespaceSelector": {"namespaceSelector": {"matchLabels": {"a": "b"}}},
        "objectSelector": {"objectSelector": {"matchLabels": {"a": "b"}}},
        "matchConditions": {"matchConditions": None},
        "timeoutSeconds": {"timeoutSeconds": 29},
        "name": {"name": "another.trainer.kubeflow.org"},
    }
    replaced = {
        f"webhook's {name}": rewritten(configuration, each) for name, each in changes.items()
    }
    extra = {**configuration["webhooks"][0], "name": "extra.trainer.kubeflow.org", **foreign}
    metadata = {**configuration["metadata"], "ownerReferences": [OWNER]}
    return {
        **replaced,
        "webhook added": updated(
            {**configuration, "webhooks": [*configuration["webhooks"], extra]}
        ),
        "webhook removed": updated({**configuration, "webhooks": configuration["webhooks"][1:]}),
        "all webhooks removed": updated({**configuration, "webhooks": []}),
        "webhooks' owner": updated({**configuration, "metadata": metadata}),
    }


def rewritten(configuration: Object, change: Object) -> Attempt:
    """Replace fields of the first webhook; None removes one."""
    changed = deepcopy(configuration)
    first = {**changed["webhooks"][0], **change}
    changed["webhooks"][0] = {key: value for key, value in first.items() if value is not None}
    return updated(changed)


def updated(configuration: Object) -> Attempt:
    is_mutating = configuration["kind"].startswith("Mutating")
    return Attempt("PUT", MUTATING_PATH if is_mutating else CONFIGURATION_PATH, configuration)


def ordinary(here: str, configuration: Object, certificate: Object) -> dict[str, Attempt]:
    """Requests of a manager that does its work."""
    trusting = deepcopy(configuration)
    for each in trusting["webhooks"]:
        each["clientConfig"]["caBundle"] = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"
    finalizers = {"metadata": {"finalizers": ["trainer.kubeflow.org/in-use"]}}
    shipped = runtime("shipped", "ClusterTrainingRuntime")
    shipped["metadata"]["labels"]["trainer.kubeflow.org/managed-by"] = "kftrainer"
    shared = COLLECTIONS["ClusterTrainingRuntime"]
    return {
        "keys": created(here, secret("a", OWNER, **SSH_KEYS)),
        "keys read": patched(core(here, "secrets", "keys"), {}),
        "hostfile": created(here, an_object("v1", "ConfigMap", "a", OWNER), "configmaps"),
        "JobSet": created(here, job_set("a", OWNER), "jobsets"),
        "JobSet deleted": Attempt("DELETE", job_set_path(here, "ours")),
        **{
            f"gang, {version}": created(
                here, an_object(version, "PodGroup", "a", OWNER, spec={"minMember": 1}), "podgroups"
            )
            for version in POD_GROUPS
        },
        "certificate": Attempt("PUT", SECRET_PATH, {**certificate, "data": {"tls.crt": "YQ=="}}),
        "trust": updated(trusting),
        "finalizer": patched(f"{COLLECTIONS['TrainingRuntime'].format(here)}/theirs", finalizers),
        "shared finalizer": patched(f"{shared}/theirs", finalizers),
        "shipped runtime": Attempt("POST", shared, shipped),
        "revision": created(here, revision("a", **REVISION_LABEL), "controllerrevisions"),
        "revision deleted": Attempt(
            "DELETE", f"/apis/apps/v1/namespaces/{here}/controllerrevisions/unused"
        ),
    }


class Manager:
    """A client with a token of the manager's ServiceAccount."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def denial(self, attempt: Attempt) -> str:
        """Why the API server rejects the request; empty if it does not."""
        separator = "&" if "?" in attempt.path else "?"
        async with self._session.request(
            attempt.method,
            f"{self._url}{attempt.path}{separator}dryRun=All",
            json=attempt.body or ({} if attempt.method == "PATCH" else None),
            headers={"Content-Type": attempt.content_type},
        ) as response:
            if response.ok:
                return ""  # a watch would go on
            return f"{response.status} {(await response.json())['message']}"

    async def denials(self, attempts: Mapping[str, Attempt]) -> dict[str, str]:
        return {name: await self.denial(each) for name, each in attempts.items()}


@asynccontextmanager
async def manager_of(plane: ControlPlane, api: ApiClient) -> AsyncIterator[Manager]:
    headers = {"Authorization": f"Bearer {await token(api, MANAGER)}"}
    tls = ssl.create_default_context(cafile=str(plane.certificate_authority))
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Manager(session, plane.url)


async def test_attacks_with_the_managers_token_are_denied_by_the_policies_alone(
    release: Release, control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    # The webhook is not served here.
    values = {"webhook": {"failurePolicy": "Ignore"}, "managerPolicy": {"enabled": False}}
    await release.install(values=values)
    for plural in KINDS:
        await api.wait_served(await api.get(f"{CRDS}/{plural}.{GROUP}"))
    await api.create(with_namespace(secret("theirs", type="Opaque"), namespace))
    await api.create(with_namespace(an_object("v1", "ConfigMap", "theirs"), "kube-system"))
    await api.create(with_namespace(runtime("theirs"), namespace))
    await api.create(with_namespace(revision("theirs"), namespace))
    await api.create(with_namespace(revision("unused", **REVISION_LABEL), namespace))
    # The owner exists, or else the garbage collector would delete the Secret.
    reference = {"name": "theirs", "kind": "TrainingRuntime"}
    job = train_job(OWNER["name"], runtimeRef=reference, suspend=True)
    owner = {**OWNER, "uid": (await api.create(with_namespace(job, namespace)))["metadata"]["uid"]}
    await api.create(with_namespace(secret("keys", owner, **SSH_KEYS), namespace))
    await api.create(with_namespace(job_set("theirs"), namespace))
    await api.create(with_namespace(job_set("ours", owner), namespace))
    await api.create(runtime("theirs", "ClusterTrainingRuntime"))
    configuration, certificate = await api.get(CONFIGURATION_PATH), await api.get(SECRET_PATH)
    mutating = await api.get(MUTATING_PATH)
    attacks = {
        **secret_attacks(namespace),
        **object_attacks(namespace),
        **runtime_attacks(namespace),
        **revision_attacks(namespace),
        **webhook_attacks(configuration),
        **{f"mutating {name}": each for name, each in webhook_attacks(mutating).items()},
        "mutating webhook's reinvocationPolicy": rewritten(
            mutating, {"reinvocationPolicy": "Never"}
        ),
    }
    work = ordinary(namespace, configuration, certificate)
    work["trust in the mutating webhook"] = ordinary(namespace, mutating, certificate)["trust"]
    try:
        async with manager_of(control_plane, api) as manager:
            # RBAC alone: all of it succeeds.
            before = await manager.denials({**attacks, **work})
            assert {name: why for name, why in before.items() if why} == {}

            await release.upgrade(values={**values, "managerPolicy": {"enabled": True}})

            async def are_in_force() -> bool:
                some = ("token of a tenant", "webhook's url", "runtime changed")
                return all([await manager.denial(attacks[name]) for name in some])

            await until(are_in_force, within=WITHIN, what="the policies being in force")
            by_name = await manager.denials(attacks)
            assert [name for name, why in by_name.items() if not by_policy(why)] == []
            assert {name: why for name, why in (await manager.denials(work)).items() if why} == {}
            await wait_for_check_without_warnings(api)
            readings = await manager.denials(secret_readings(namespace))
            assert [name for name, why in readings.items() if not why.startswith("403")] == []
    finally:
        await api.delete(core("kube-system", "configmaps", "theirs"))


async def wait_for_check_without_warnings(api: ApiClient) -> None:
    """Wait until Kubernetes has checked the types in all expressions."""

    async def checked() -> list[Object] | None:
        found = (await api.get(POLICIES))["items"]
        ours = [each for each in found if each["metadata"]["name"].startswith(f"{NAME}-manager-")]
        return ours if all("typeChecking" in each.get("status", {}) for each in ours) else None

    policies = await until(checked, within=WITHIN, what="the policies being checked")
    assert [each["status"]["typeChecking"] for each in policies] == [{}] * 4


def by_policy(denial: str) -> bool:
    return "ValidatingAdmissionPolicy" in denial and "denied request: the manager may" in denial


def with_namespace(manifest: Object, namespace: str) -> Object:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


async def test_certificate_secret_is_exempt_only_in_the_namespace_of_the_release(
    release: Release, control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    """The manager may create it again, as an Opaque Secret, after another client deleted it."""
    await release.install(values={"webhook": {"failurePolicy": "Ignore"}})
    await api.delete(SECRET_PATH)
    name = SECRET_PATH.rpartition("/")[2]
    async with manager_of(control_plane, api) as manager:
        elsewhere = created(namespace, secret(name, type="Opaque"))

        async def is_in_force() -> bool:
            return bool(await manager.denial(elsewhere))

        await until(is_in_force, within=WITHIN, what="the policies being in force")
        assert by_policy(await manager.denial(elsewhere))
        of_another_type = {**TOKEN, "metadata": {"annotations": OF_THE_CLUSTER}}
        assert by_policy(await manager.denial(created(NAMESPACE, secret(name, **of_another_type))))
        assert await manager.denial(created(NAMESPACE, secret(name, type="Opaque"))) == ""
