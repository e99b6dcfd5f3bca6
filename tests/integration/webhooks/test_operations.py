"""The webhook as its operators see it: metrics, and plugins that are disabled."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.controllers.runtime_finalizer import wanted_finalizers
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.meta import ObjectMeta
from tests.integration.webhooks.cases import KINDS, expected, job_with, placed, reference, torch
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime as runtime_of
from tests.support.objects import train_job
from tests.support.webhooks import AdmissionClient, admission_client_for, admitting_manager

pytestmark = pytest.mark.integration

CONFIGURATION = """\
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
plugins:
  disabled: [Volcano]
admission:
  stringNumProcPerNode: Reject
"""
NO_STRING = (
    'spec.trainer.numProcPerNode: Invalid value: "auto": must be an integer: clients of Kubeflow '
    "Trainer 2.2 and later (Kueue 0.17, the SDK) cannot decode a string: write a number, or leave "
    "it out and set it in the runtime's mlPolicy.torch"
)
PLUGIN_DISABLED = (
    "spec.runtimeRef: Invalid value: <runtimeRef>: TrainingRuntime {}/<runtime>: "
    "spec.podGroupPolicy.volcano: Forbidden: needs the plugin Volcano, which is disabled"
)
LOST_IN_QUEUE = (
    "spec.podTemplateOverrides: lost when Kueue up to 0.19 admits the TrainJob: set the values in "
    "the runtime or in other fields of spec.runtimePatches"
)
REQUESTS = "controller_runtime_webhook_requests_total"
LATENCY = "controller_runtime_webhook_latency_seconds"
PATH = "/validate-trainer-kubeflow-org-v1alpha1-{}"


@pytest.fixture(scope="module")
def metrics_address() -> Iterator[str]:
    """Where the manager's metrics are."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    yield f"{LOOPBACK}:{ports.reserve()}"
    ports.release_all()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager(
    plane: ControlPlane, metrics_address: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ManagerProcess]:
    """A manager with metrics, and without Volcano."""
    file = tmp_path_factory.mktemp("configuration") / "configuration.yaml"
    file.write_text(CONFIGURATION)
    flags = ("--metrics-bind-address", metrics_address, "--no-metrics-secure")
    async with admitting_manager(plane, "--config", str(file), *flags) as manager:
        yield manager


@pytest.fixture
def user(api: ApiClient, manager: ManagerProcess) -> AdmissionClient:
    """A user who does not retry, because the responses are counted here."""
    return admission_client_for(api)


async def samples(address: str) -> dict[tuple[str, str, str], float]:
    """The metrics of webhooks: by name, path and code."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as answer,
    ):
        text = await answer.text()
    return {
        (each.name, each.labels.get("webhook", ""), each.labels.get("code", "")): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name.startswith("controller_runtime_webhook_")
    }


async def has_no_finalizer(api: ApiClient) -> bool:
    """Whether the manager has no more writes to runtimes, which would call the webhook."""
    jobs = (await api.get(TRAIN_JOBS.collection_path()))["items"]
    in_use = {runtime_in_use(job) for job in jobs}
    for kind in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
        for each in (await api.get(kind.collection_path()))["items"]:
            metadata = ObjectMeta.parse(each["metadata"])
            key = (kind.kind, metadata.namespace or "", metadata.name)
            if wanted_finalizers(metadata, in_use=key in in_use) != (metadata.finalizers or []):
                return False
    return True


def runtime_in_use(job: Object) -> tuple[str, str, str]:
    """The kind, namespace and name of a TrainJob's runtime."""
    reference = job["spec"]["runtimeRef"]
    is_namespaced = reference["kind"] == TRAINING_RUNTIMES.kind
    namespace = job["metadata"]["namespace"] if is_namespaced else ""
    return reference["kind"], namespace, reference["name"]


async def settled_samples(address: str, api: ApiClient) -> dict[tuple[str, str, str], float]:
    """The same once no more requests arrive, not even for writes of the manager."""
    what = "the manager's finalizers on runtimes"
    await until(lambda: has_no_finalizer(api), within=30, what=what)
    last: dict[tuple[str, str, str], float] = {}

    async def unchanged() -> dict[tuple[str, str, str], float] | None:
        nonlocal last
        found = await samples(address)
        is_same, last = found == last, found
        return found if is_same else None

    return await until(unchanged, within=30, what="no more requests", every=1.0)


async def test_requests_are_counted(
    user: AdmissionClient, metrics_address: str, api: ApiClient, namespace: str
) -> None:
    before = await settled_samples(metrics_address, api)
    for kind in KINDS:
        for _ in range(2):
            await user.create(placed(torch(), kind, namespace, namespace), dry_run=True)
    job = train_job("train", runtimeRef={"name": "nowhere"})
    job["metadata"]["namespace"] = namespace
    for _ in range(3):
        assert (await user.create(job)).denial
    after = await samples(metrics_address)
    for kind, number in (("trainjob", 3), *((kind.lower(), 2) for kind in KINDS)):
        path = PATH.format(kind)
        for key in ((REQUESTS, path, "200"), (f"{LATENCY}_count", path, "")):
            assert after[key] - before[key] == number, key
        assert after[REQUESTS, path, "500"] == 0
        assert after["controller_runtime_webhook_requests_in_flight", path, ""] == 0
    assert after["controller_runtime_webhook_panics_total", "", ""] == 0


async def denials(address: str) -> Counter[tuple[str, str]]:
    """How often which rule was broken, by kind and rule."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as answer,
    ):
        text = await answer.text()
    return Counter(
        {
            (each.labels["kind"], each.labels["rule"]): int(each.value)
            for family in text_string_to_metric_families(text)
            for each in family.samples
            if each.name == "kftrainer_admission_denials_total"
        }
    )


async def test_denials_are_counted_by_rule(
    user: AdmissionClient, metrics_address: str, namespace: str
) -> None:
    before = await denials(metrics_address)
    bad = torch(job_with(replicas=2, spec={"parallelism": 0}))
    good = placed(torch(), KINDS[0], "torch", namespace)
    assert (await user.create(good)).accepted
    for kind in KINDS:
        assert (await user.create(placed(bad, kind, namespace, namespace))).denial
    ref = reference(KINDS[0], "torch")
    reserved = [{"name": "PET_NNODES", "value": "1"}]
    misspelled = [{"targetJobs": [{"name": name}]} for name in ("nod", "nods")]
    for name, spec in (
        ("a", {"runtimeRef": reference(KINDS[0], "nowhere")}),
        ("b", {"runtimeRef": reference(KINDS[0], "nowhere")}),
        ("c", {"runtimeRef": ref, "trainer": {"env": reserved}}),
        (
            "x" * 60,
            {"runtimeRef": ref, "trainer": {"env": reserved}, "podTemplateOverrides": misspelled},
        ),
    ):
        job = train_job(name, **spec)
        job["metadata"]["namespace"] = namespace
        for dry_run in (True, False):
            assert (await user.create(job, dry_run=dry_run)).denial
    assert await denials(metrics_address) - before == {
        **{(kind, "runtime-replicas"): 1 for kind in KINDS},
        **{(kind, "runtime-parallelism"): 1 for kind in KINDS},
        ("TrainJob", "runtime-missing"): 2,
        ("TrainJob", "torch-reserved-env"): 2,
        ("TrainJob", "name-too-long"): 1,
        ("TrainJob", "override-unknown-job"): 1,
    }


async def test_policy_of_a_disabled_plugin(
    user: AdmissionClient, metrics_address: str, namespace: str
) -> None:
    node = job_with(pod={"schedulerName": "volcano"})
    for name, policy in (("with", {"podGroupPolicy": {"volcano": {}}}), ("without", {})):
        manifest = runtime_of(jobs=[node], **policy)
        place = placed(manifest, "TrainingRuntime", name, namespace)
        assert (await user.create(place)).accepted
    before = await denials(metrics_address)
    answers = {}
    for name in ("with", "without"):
        job = train_job("train", runtimeRef=reference("TrainingRuntime", name))
        job["metadata"]["namespace"] = namespace
        answers[name] = await user.create(job)
    message = expected(PLUGIN_DISABLED.format(namespace), "TrainingRuntime", "with")
    assert answers["with"].denial == message
    assert answers["without"].accepted
    assert await denials(metrics_address) - before == {("TrainJob", "plugin-off"): 1}


async def test_string_processes_are_rejected_where_the_configuration_demands_it(
    user: AdmissionClient, metrics_address: str, namespace: str
) -> None:
    assert (await user.create(placed(torch(), "TrainingRuntime", "torch", namespace))).accepted
    before = await denials(metrics_address)
    job = train_job("train", runtimeRef=reference("TrainingRuntime", "torch"))
    job["metadata"]["namespace"] = namespace
    job["spec"]["trainer"] = {"numProcPerNode": "auto"}
    rejected = await user.create(job)
    assert (rejected.status, rejected.denial) == (403, NO_STRING)
    assert await denials(metrics_address) - before == {("TrainJob", "processes-not-integer"): 1}
    job["spec"]["trainer"] = {"numProcPerNode": 2}
    accepted = await user.create(job)
    assert (accepted.accepted, accepted.warnings) == (True, [])


async def test_queued_trainjob_with_fields_that_kueue_drops_gets_a_warning(
    user: AdmissionClient, namespace: str
) -> None:
    assert (await user.create(placed(torch(), "TrainingRuntime", "torch", namespace))).accepted
    job = train_job("train", runtimeRef=reference("TrainingRuntime", "torch"))
    labels = {"kueue.x-k8s.io/queue-name": "queue"}
    job["metadata"] |= {"namespace": namespace, "labels": labels}
    spec = {"nodeSelector": {"zone": "a"}}
    job["spec"]["podTemplateOverrides"] = [{"targetJobs": [{"name": "node"}], "spec": spec}]
    accepted = await user.create(job)
    assert (accepted.accepted, accepted.warnings) == (True, [LOST_IN_QUEUE])
