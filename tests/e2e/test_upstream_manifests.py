"""The manifests and examples that Kubeflow Trainer published: what happens to each file.

Each file is applied to an API server with our CRDs and our webhook, as `kubectl apply` does. Every
TrainJob, and one more on each runtime, is planned, and its objects are applied in a dry run, with
the webhooks of JobSet.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.devcluster import pytest_plugin
from kftrainer.devcluster.artifacts.versions import COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import ApiError
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.planned_object import PlannedObject
from tests.support.managers import ManagerProcess
from tests.support.objects import Object, train_job
from tests.support.plans import RUNTIMES
from tests.support.strict_transport import StrictTransport, dropped_fields
from tests.support.upstream_manifests import training_manifests
from tests.support.webhooks import AdmissionClient, admission_client_for, admitting_manager

SHAPE = Shape(jobset=True, crds=(COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS))

ACCEPTED = ""
# Reasons that docs/compatibility.md gives; the messages name the field.
JAX = "jax (Kubeflow Trainer 2.2) is not supported"
XGBOOST = "xgboost (Kubeflow Trainer 2.2) is not supported"
FLUX = "flux (Kubeflow Trainer 2.2) is not supported"
ON_FLUX = 'ClusterTrainingRuntime.trainer.kubeflow.org "flux-distributed" not found'

RUNTIME_FILES = {
    f"manifests/base/runtimes/{name}.yaml": ACCEPTED
    for name in (
        "deepspeed_distributed",
        "mlx_distributed",
        "torch_distributed",
        "torchtune/llama3_2/llama3_2_1B",
        "torchtune/llama3_2/llama3_2_3B",
    )
}
SINCE_2_1 = {
    "manifests/base/runtimes/data-cache/torch_distributed_with_cache.yaml": ACCEPTED,
    "manifests/base/runtimes/torchtune/qwen2_5/qwen2_5_1.5B.yaml": ACCEPTED,
}
OUTCOMES: Mapping[str, Mapping[str, str]] = {
    "v2.0.0": {**RUNTIME_FILES, "manifests/base/runtimes/mpi_distributed.yaml": ACCEPTED},
    "v2.1.0": {**RUNTIME_FILES, **SINCE_2_1},
    "v2.3.0": {
        **RUNTIME_FILES,
        **SINCE_2_1,
        "manifests/base/runtimes/jax_distributed.yaml": JAX,
        "manifests/base/runtimes/xgboost_distributed.yaml": XGBOOST,
        "examples/flux/flux-interactive.yaml": ON_FLUX,
        "examples/flux/flux-runtime.yaml": FLUX,
        "examples/flux/lammps-train-gpus.yaml": ON_FLUX,
        "examples/flux/lammps-train-job.yaml": ON_FLUX,
        "examples/yaml/01-multi-node.yaml": ACCEPTED,
        "examples/yaml/02-runtime-patches.yaml": ACCEPTED,
        "examples/yaml/03-kueue-integration.yaml": ACCEPTED,
        "examples/yaml/04-volcano-integration.yaml": ACCEPTED,
        "examples/yaml/05-multi-step.yaml": ACCEPTED,
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """An API server with JobSet; the names of the published runtimes are free in it."""
    async for plane in pytest_plugin._for_session(pytestconfig, SHAPE):
        yield plane


@pytest.fixture
def control_plane(plane: ControlPlane) -> ControlPlane:
    """The same, for `api` and `namespace`."""
    return plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """A manager whose webhook the API server calls."""
    async with admitting_manager(plane, "--log-level", "debug") as manager:
        yield manager


@pytest_asyncio.fixture
async def dry_run(plane: ControlPlane) -> AsyncIterator[Client]:
    """A client with strict validation, for the planned objects."""
    connection = await load_connection(plane.kubeconfig)
    async with StrictTransport(connection, user_agent="kftrainer-tests/1") as transport:
        yield Client(transport, field_manager="trainer")


class Release:
    """Applies the files of a release in a namespace."""

    def __init__(self, admission: AdmissionClient, dry_run: Client, namespace: str) -> None:
        self._admission = admission
        self._dry_run = dry_run
        self._namespace = namespace
        self._runtimes: list[Object] = []

    async def outcomes(self, files: Mapping[str, Sequence[Object]]) -> dict[str, list[str]]:
        """Return what is wrong with each file: errors of all its documents."""
        errors: dict[str, list[str]] = {path: [] for path in files}
        jobs = []
        for path, document in _documents(files):
            if document["kind"] == "TrainJob":
                jobs.append((path, document))
                continue
            errors[path] += await self._apply_runtime(document)
            if not errors[path]:
                jobs.append((path, _job_on(document)))
        for path, job in jobs:
            errors[path] += await self._plan(job)
        return errors

    async def _apply_runtime(self, document: Object) -> list[str]:
        outcome = await self._admission.apply(self._placed(document))
        if not outcome.accepted:
            return [outcome.message]
        stored: Any = outcome.body
        self._runtimes.append(stored)
        return [*dropped_fields(document, stored)]

    async def _plan(self, document: Object) -> list[str]:
        outcome = await self._admission.create(self._placed(document), dry_run=True)
        if not outcome.accepted:
            return [outcome.message]
        job = TrainJob.parse(outcome.body)
        planned = list(RUNTIMES.of(job).new_objects(job, GivenObjects(self._runtimes)))
        [jobset] = [each.manifest for each in planned if each.resource is JOB_SETS]
        errors = [*dropped_fields(document, outcome.body)]
        for patch in document["spec"].get("runtimePatches", ()):
            # Comparable because neither has jobs or containers that the other lacks.
            errors += dropped_fields(patch["trainingRuntimeSpec"]["template"], jobset)
        for each in planned:
            errors += await self._errors_of_jobset(each)
        return errors

    async def _errors_of_jobset(self, planned: PlannedObject) -> list[str]:
        manifest = planned.manifest if planned.generate is None else planned.generate()
        try:
            applied = await self._dry_run.apply(planned.resource, manifest, dry_run=True)
        except ApiError as error:
            return [str(error)]
        return [*dropped_fields(manifest, applied)]

    def _placed(self, document: Object) -> Object:
        if document["kind"] == "ClusterTrainingRuntime":
            return document
        placed = deepcopy(document)
        placed["metadata"]["namespace"] = self._namespace
        return placed


def _documents(files: Mapping[str, Sequence[Object]]) -> Iterator[tuple[str, Object]]:
    for path, documents in files.items():
        for document in documents:
            yield path, document


def _job_on(runtime: Object) -> Object:
    """A TrainJob with two nodes on the runtime."""
    reference = {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    return train_job("try-it", runtimeRef=reference, trainer={"numNodes": 2})


@pytest.mark.parametrize("version", OUTCOMES)
async def test_every_published_manifest_is_accepted_and_planned_or_rejected_for_a_known_reason(
    version: str, api: ApiClient, namespace: str, manager: ManagerProcess, dry_run: Client
) -> None:
    files = await training_manifests(version)
    expected = OUTCOMES[version]
    assert sorted(files) == sorted(expected), "the table names every file of the release"
    errors = await Release(admission_client_for(api, manager), dry_run, namespace).outcomes(files)
    assert {path: _outcome(found, expected[path]) for path, found in errors.items()} == expected


def _outcome(errors: Sequence[str], expected: str) -> str:
    """The expected reason if all errors are for this reason, else the errors."""
    if errors and expected and all(expected in each for each in errors):
        return expected
    return "\n".join(errors)
