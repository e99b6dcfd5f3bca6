"""What released Kubeflow SDKs do with kftrainer; `make test-clients` runs it."""

import pytest

from kftrainer.api.names import LABEL_FRAMEWORK
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.waiting import until
from tests.clients.conftest import Sdk
from tests.support.objects import runtime, train_job
from tests.support.scenarios import disk
from tests.support.trainjobs import END_TO_END_TIMEOUT
from tests.support.webhooks import AdmissionClient

pytestmark = pytest.mark.e2e

by_default = pytest.mark.parametrize("setting", ["Warn"], indirect=True)
PROCESSES = "numProcPerNode"


def in_namespace(sdk: Sdk, manifest: Object) -> Object:
    """The object in the namespace of the SDK's user."""
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": sdk.namespace}}


def named_in(text: str, *fields: str) -> str:
    """The first of the fields that the text names; the whole text if it names none."""
    return next((field for field in fields if field in text), text)


@by_default
async def test_jobs_are_trained_observed_and_deleted(
    sdk: Sdk, shipped: dict[str, Object], api: ApiClient
) -> None:
    await api.apply(disk(sdk.namespace))
    nodes = ("node-0", "node-1")
    steps = ("dataset-initializer", "model-initializer", "node-0")
    assert await sdk("life") == {
        "runtimes": sorted((*shipped, "torch-lasting")),
        "got": [True, "torch-distributed", 2],
        "listed": True,
        "trained": ["Complete", dict.fromkeys(nodes, "Succeeded")],
        "running": ["Running", dict.fromkeys(nodes, "Running")],
        "fine-tuned": ["Complete", dict.fromkeys(steps, "Succeeded")],
        "left": [],
    }

    async def is_empty() -> bool:
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{sdk.namespace}/jobsets"
        return not (await api.get(path))["items"]

    await until(is_empty, within=END_TO_END_TIMEOUT, what="the deletion of the JobSets")


@by_default
@pytest.mark.parametrize(
    ("sdk", "options"),
    [("0.4.1", ["RuntimePatch"]), ("0.5.0", ["RuntimePatch", "ActiveDeadlineSeconds"])],
    indirect=["sdk"],
)
async def test_options_of_later_releases_take_effect(
    sdk: Sdk, options: list[str], api: ApiClient
) -> None:
    assert await sdk("options") == dict.fromkeys(options, "")

    async def labelled() -> bool:
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{sdk.namespace}/jobsets"
        found = (await api.get(path))["items"]
        return any("team" in (each["metadata"].get("labels") or {}) for each in found)

    await until(labelled, within=END_TO_END_TIMEOUT, what="a JobSet with the label of the patch")


async def test_list_jobs_with_a_string_in_num_proc_per_node(
    sdk: Sdk, setting: str, user: AdmissionClient
) -> None:
    """Decision 0009: stored strings break clients of 2.2 and later, so they can be rejected."""
    await user.create(in_namespace(sdk, train_job("number", trainer={PROCESSES: 1})))
    string = train_job("string", trainer={PROCESSES: "auto"})
    response = await user.create(in_namespace(sdk, string))
    reply = named_in(" ".join([response.denial, *response.warnings]), PROCESSES)
    outcome = await sdk("list")
    major, minor, _ = outcome["api"].split(".")
    if setting == "Reject":
        expected = (False, ["number"], "")
    elif (int(major), int(minor)) < (2, 2):
        expected = (True, ["number", "string"], "")
    else:
        expected = (True, [], PROCESSES)
    found = (response.accepted, outcome["jobs"], named_in(outcome["error"], PROCESSES))
    assert (reply, *found) == (PROCESSES, *expected)


@by_default
async def test_runtime_without_framework_label_breaks_list_jobs_after_a_warning(
    sdk: Sdk, user: AdmissionClient
) -> None:
    name = f"unlabelled-{sdk.namespace}"
    unlabelled = runtime(name, kind="ClusterTrainingRuntime")
    del unlabelled["metadata"]["labels"]
    response = await user.create(unlabelled)
    await user.create(in_namespace(sdk, train_job("job", runtimeRef={"name": name})))
    outcome = await sdk("list")
    texts = (*response.warnings, outcome["error"])
    found = [named_in(each, f"{LABEL_FRAMEWORK} label", LABEL_FRAMEWORK) for each in texts]
    assert (found, outcome["jobs"], name in outcome["runtimes"]) == (
        [LABEL_FRAMEWORK, f"{LABEL_FRAMEWORK} label"],
        [],
        False,
    )
