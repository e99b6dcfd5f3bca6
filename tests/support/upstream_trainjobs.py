"""TrainJobs created by Kubeflow Trainer, with their runtimes and JobSets.

The golden cases hold what releases 2.1 and 2.3 created. Here they are written to the API server
with the same field managers, owner references, finalizers and status.
"""

import copy
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import yaml

from kftrainer.devcluster.client import APPLY, ApiClient, Object
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.support.golden import EXPECTED, FOLDER, INPUT, read
from tests.support.objects import API
from tests.support.trainjobs import COMPLETES_LATE

MERGE = "application/merge-patch+json"
JOB = "demo"
NAMESPACE, UID = "team-a", "11111111-2222-3333-4444-555555555555"
OPERATOR_NAMESPACE = "kubeflow-system"
# The original applies objects as `trainer`. It writes statuses and finalizers by updates, whose
# field manager is the name of its program.
APPLIER, UPDATER = "trainer", "manager"
IN_USE = "trainer.kubeflow.org/resource-in-use"
KEYS = {"ssh-privatekey": "cHJpdmF0ZQ==", "ssh-publickey": "cHVibGlj"}
INITIALIZERS = ("dataset-initializer", "model-initializer")
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
CONFLICT = 409
SERVED_WITHIN = 60.0
PLURALS = {
    "TrainJob": "trainjobs",
    "TrainingRuntime": "trainingruntimes",
    "ClusterTrainingRuntime": "clustertrainingruntimes",
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PERMISSIVE = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
OWN_CASES = Path(__file__).parent.parent / "e2e" / "migration" / "golden"


@dataclass(frozen=True, slots=True)
class NotServed:
    """A field of a later release that this API does not serve yet."""

    kind: str
    path: tuple[str, ...]


# These cases cannot be created any more after the switch. They are stored before the CRDs of the
# original are replaced, and have to live on.
NOT_SERVED: Mapping[str, NotServed] = {
    "n01_jax": NotServed("ClusterTrainingRuntime", ("spec", "mlPolicy", "jax")),
    "n03_xgb_gpu": NotServed("ClusterTrainingRuntime", ("spec", "mlPolicy", "xgboost")),
    "n04_flux": NotServed("ClusterTrainingRuntime", ("spec", "mlPolicy", "flux")),
}


@dataclass(frozen=True)
class Original:
    """A golden case of a release of the original."""

    release: str
    folder: Path
    name: str

    def __str__(self) -> str:
        return f"{self.release}-{self.name}"

    @property
    def short(self) -> str:
        """The number of the case."""
        return self.name.partition("_")[0]

    @cached_property
    def documents(self) -> Sequence[Object]:
        """What users created, as the original's API server stored it."""
        return read(self.folder / f"{self.name}{INPUT}")

    @cached_property
    def expected(self) -> Sequence[Object]:
        """What the original applied."""
        return read(self.folder / f"{self.name}{EXPECTED}")

    @property
    def not_served(self) -> NotServed | None:
        """The field that this API does not serve."""
        return NOT_SERVED.get(self.name)

    def served(self) -> list[Object]:
        """The documents without the field that is not served."""
        documents = copy.deepcopy(list(self.documents))
        if self.not_served is not None:
            *parents, field = self.not_served.path
            for document in documents:
                if document["kind"] == self.not_served.kind:
                    holder = document
                    for parent in parents:
                        holder = holder[parent]
                    del holder[field]
        return documents


def _cases(release: str, folder: Path) -> Iterator[Original]:
    for file in sorted(folder.glob(f"*{INPUT}")):
        yield Original(release, folder, file.name.removesuffix(INPUT))


ORIGINALS = (
    *_cases("v2.1", FOLDER / "original"),
    *_cases("v2.1", OWN_CASES / "derived"),
    *_cases("v2.3", FOLDER / "v2.3"),
    *_cases("v2.3", OWN_CASES / "v2.3"),
)


class Copy:
    """One TrainJob of a case in a namespace of its own, long-running and never tried again."""

    def __init__(self, case: Original, namespace: str, *, suspend: bool) -> None:
        self.case = case
        self.namespace = namespace
        self.suspend = suspend
        documents = [self._moved(each) for each in case.documents]
        [self.train_job] = [each for each in documents if each["kind"] == "TrainJob"]
        [self.runtime] = [each for each in documents if "Runtime" in each["kind"]]
        known = (self.train_job, self.runtime)
        self.others = [each for each in documents if each not in known and not _is_ours(each)]
        self.children = [self._moved(each) for each in case.expected]
        self._adapt()

    @property
    def job_set(self) -> Object:
        """The JobSet as the original applied it."""
        [found] = [each for each in self.children if each["kind"] == "JobSet"]
        return found

    @property
    def pods(self) -> int:
        """How many pods train at once."""
        return sum(
            job["replicas"] * job["template"]["spec"]["parallelism"]
            for job in self.job_set["spec"]["replicatedJobs"]
            if not _is_initializer(job)
        )

    def _moved(self, document: Object) -> Object:
        text = orjson.dumps(document).replace(NAMESPACE.encode(), self.namespace.encode())
        moved: Object = orjson.loads(text)
        return moved

    def _adapt(self) -> None:
        del self.train_job["metadata"]["uid"]
        self.train_job["spec"]["suspend"] = self.suspend
        if self.runtime["kind"] == "ClusterTrainingRuntime":
            self.runtime["metadata"]["name"] = self._unique(self.runtime["metadata"]["name"])
            self.train_job["spec"]["runtimeRef"]["name"] = self.runtime["metadata"]["name"]
        for template in (self.runtime["spec"]["template"], self.job_set):
            for job in template["spec"]["replicatedJobs"]:
                _let_run_once(job)
        self.job_set["spec"]["suspend"] = self.suspend
        for secret in self.children:
            if secret.get("type") == "kubernetes.io/ssh-auth":
                secret["data"] = KEYS

    def _unique(self, name: str) -> str:
        """The name of a runtime that no other case has; torchtune reads the model from it."""
        return name if name.startswith("torchtune-") else f"{name}-{self.case.short}"

    async def create(self, api: ApiClient) -> None:
        """Create what users created, and then what the original created for it."""
        await self._create_runtime(api)
        for needed in (*self.others, *self._needed_by_pods()):
            await api.apply(needed)
        created = await api.create(self.train_job)
        uid = created["metadata"]["uid"]
        if self.case.release == "v2.3":
            self.children.append(self._snapshot())
        for child in self.children:
            child["metadata"]["ownerReferences"][0]["uid"] = uid
            await apply_as(api, APPLIER, child)

    async def _create_runtime(self, api: ApiClient) -> None:
        try:
            await api.create(self.runtime)
        except ApiError as error:
            if error.status != CONFLICT:  # another copy has created it
                raise
        if self.case.release == "v2.1":  # later releases add no finalizer
            await update_as(
                api, await api.path_of(self.runtime), {"metadata": {"finalizers": [IN_USE]}}
            )

    def _needed_by_pods(self) -> Iterator[Object]:
        pods = [
            job["template"]["spec"]["template"]["spec"]
            for job in self.job_set["spec"]["replicatedJobs"]
        ]
        for name in {pod["serviceAccountName"] for pod in pods if "serviceAccountName" in pod}:
            yield self._named("ServiceAccount", name)
        volumes = [volume for pod in pods for volume in pod.get("volumes", ())]
        claims = [each["persistentVolumeClaim"]["claimName"] for each in volumes if _claims(each)]
        for claim in dict.fromkeys(claims):
            yield from self._bound_claim(claim)

    def _named(self, kind: str, name: str, **fields: Any) -> Object:
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}

    def _bound_claim(self, name: str) -> Iterator[Object]:
        volume = f"{self.namespace}-{name}"
        modes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **modes,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/nowhere"},
                "claimRef": {"name": name, "namespace": self.namespace},
            },
        }
        size = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume}
        yield self._named("PersistentVolumeClaim", name, spec={**modes, **size})

    def _snapshot(self) -> Object:
        """The runtime that release 2.3 keeps for each TrainJob."""
        data = {"runtime": yaml.safe_dump(self.runtime)}
        snapshot = self._named("ConfigMap", f"{JOB}-runtime-snapshot", data=data)
        owners = copy.deepcopy(self.job_set["metadata"]["ownerReferences"])
        snapshot["metadata"]["ownerReferences"] = owners
        return snapshot

    async def write_status(self, api: ApiClient, status: Object) -> None:
        """Write the TrainJob's status as this release of the original does."""
        path = await api.path_of(self.train_job) + "/status"
        if self.case.release == "v2.3":
            await update_as(api, path, {"status": status})
            return
        whole = {**await api.get(path), "status": status}
        await api.request("PUT", path, body=whole, query={"fieldManager": UPDATER})


@asynccontextmanager
async def crds_of_the_original(api: ApiClient) -> AsyncIterator[None]:
    """Serve the API as loosely as the original's CRDs do, for the length of the block."""
    ours = {plural: await _replace_schema(api, plural, PERMISSIVE) for plural in PLURALS.values()}
    try:
        await _wait_until_refused(api, refused=False)
        yield
    finally:
        for plural, schema in ours.items():
            await _replace_schema(api, plural, schema)
        await _wait_until_refused(api, refused=True)


async def _replace_schema(api: ApiClient, plural: str, schema: Object) -> Object:
    """Replace the schema of a kind; the schema that it had."""
    path = f"{DEFINITIONS}/{plural}.{API.partition('/')[0]}"

    async def replaced() -> Object | None:
        found = await api.get(path)
        [version] = found["spec"]["versions"]
        before, version["schema"] = version["schema"], schema
        try:
            await api.request("PUT", path, body=found)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            return None
        return dict(before)

    return await until(replaced, within=SERVED_WITHIN, what=f"another schema of {plural}")


async def _wait_until_refused(api: ApiClient, *, refused: bool) -> None:
    """Wait until the API server uses the schemas: it receives them a moment later."""
    for kind, plural in PLURALS.items():
        probe = {"apiVersion": API, "kind": kind, "metadata": {"name": "probe"}, "spec": {"x": 1}}
        inside = "" if kind.startswith("Cluster") else "/namespaces/default"
        path = f"/apis/{API}{inside}/{plural}"

        async def is_applied(path: str = path, probe: Object = probe) -> bool:
            query = {"dryRun": "All", "fieldValidation": "Strict"}
            try:
                await api.request("POST", path, body=probe, query=query)
            except ApiError:
                return refused
            return not refused

        await until(is_applied, within=SERVED_WITHIN, what=f"another schema of {kind} being used")


async def apply_as(api: ApiClient, field_manager: str, manifest: Object) -> None:
    """Apply the object by force with this field manager."""
    query = {"fieldManager": field_manager, "force": "true"}
    path = await api.path_of(manifest)
    await api.request("PATCH", path, query=query, body=manifest, content_type=APPLY)


async def update_as(api: ApiClient, path: str, changes: Object) -> None:
    """Patch the object with the field manager of the original's updates."""
    query = {"fieldManager": UPDATER}
    await api.request("PATCH", path, query=query, body=changes, content_type=MERGE)


def _is_ours(document: Object) -> bool:
    """Whether it belongs to the installation of the operator."""
    return bool(document["metadata"].get("namespace") == OPERATOR_NAMESPACE)


def _is_initializer(job: Mapping[str, Any]) -> bool:
    labels = (job["template"].get("metadata") or {}).get("labels") or {}
    return labels.get(STEP) in INITIALIZERS


def _let_run_once(job: Object) -> None:
    """Have the pods of a job run until the test ends them, and the job fail with the first."""
    job["template"]["spec"]["backoffLimit"] = 0
    if not _is_initializer(job):
        metadata = job["template"]["spec"]["template"].setdefault("metadata", {})
        metadata.setdefault("annotations", {}).update(COMPLETES_LATE)


def _claims(volume: Mapping[str, Any]) -> bool:
    return "persistentVolumeClaim" in volume


def rows_of(job_set: Mapping[str, Any]) -> Sequence[Object]:
    """The TrainJob's `jobsStatus` for the status of a JobSet."""
    status = job_set.get("status") or {}
    return [dict(each) for each in status.get("replicatedJobsStatus", ())]
