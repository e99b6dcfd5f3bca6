"""Any object that could be stored is given back as it was, whatever else stands in it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from kftrainer.api.trainingruntime import ClusterTrainingRuntime, TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.model import KubeModel

words = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=8)
maps = st.dictionaries(words, words, max_size=3)
json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=4,
)
anything = st.dictionaries(words, json, max_size=2)
short_lists = st.lists(anything, max_size=2)
counts = st.integers(1, 2**31 - 1)
processes = counts | st.sampled_from(["auto", "cpu", "gpu"])
# Names that no field has in the document; some are what a field is called in Python.
unknown_names = words.map("x-{}".format) | st.sampled_from(
    ["num_nodes", "storage_uri", "ml_policy"]
)
unknown = st.dictionaries(unknown_names, json, max_size=1)


def objects(
    required: dict[str, SearchStrategy[Any]] | None = None, **optional: SearchStrategy[Any]
) -> SearchStrategy[dict[str, Any]]:
    known = st.fixed_dictionaries(required or {}, optional=optional)
    return st.builds(lambda one, other: {**other, **one}, known, unknown)


asset = objects(storageUri=words, env=short_lists, secretRef=anything)
override = objects(
    {"targetJobs": st.lists(objects({"name": words}), min_size=1, max_size=2)},
    metadata=objects(labels=maps, annotations=maps),
    spec=anything,
)
legacy_override = objects(
    {"targetJobs": st.lists(objects({"name": words}), min_size=1, max_size=2)},
    serviceAccountName=words,
    nodeSelector=maps,
    affinity=anything,
    tolerations=short_lists,
    volumes=short_lists,
    schedulingGates=short_lists,
    imagePullSecrets=short_lists,
    initContainers=st.lists(objects({"name": words}, volumeMounts=short_lists), max_size=2),
    containers=st.lists(objects({"name": words}, env=short_lists), max_size=2),
)
trainer = objects(
    image=words,
    command=st.lists(words, max_size=3),
    args=st.lists(words, max_size=3),
    env=short_lists,
    numNodes=counts,
    resourcesPerNode=anything,
    numProcPerNode=processes,
)
condition = objects(
    {
        "type": st.sampled_from(["Suspended", "Complete", "Failed"]),
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "reason": st.just("Because"),
        "message": st.text(max_size=20),
        "lastTransitionTime": st.just("2026-01-02T03:04:05Z"),
    },
    observedGeneration=st.integers(0, 9),
)
counters = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), st.integers(0, 9))
metadata = objects(
    {"name": words},
    namespace=words,
    labels=maps,
    annotations=maps,
    finalizers=st.lists(words, max_size=2),
    generation=counts,
    resourceVersion=words,
    managedFields=short_lists,
    ownerReferences=st.lists(
        objects(
            dict.fromkeys(("apiVersion", "kind", "name", "uid"), words), controller=st.booleans()
        ),
        max_size=2,
    ),
)
train_jobs = objects(
    {
        "apiVersion": st.just("trainer.kubeflow.org/v1alpha1"),
        "kind": st.just("TrainJob"),
        "metadata": metadata,
        "spec": objects(
            {"runtimeRef": objects({"name": words}, apiGroup=words, kind=words)},
            initializer=objects(dataset=asset, model=asset),
            trainer=st.none() | trainer,
            labels=maps,
            annotations=maps,
            podTemplateOverrides=st.lists(override, max_size=2),
            podSpecOverrides=st.lists(legacy_override, max_size=2),
            suspend=st.booleans(),
            managedBy=words,
        ),
    },
    status=objects(
        conditions=st.lists(condition, max_size=3),
        jobsStatus=st.lists(objects({"name": words, **counters}), max_size=2),
    ),
)
runtime_spec = objects(
    mlPolicy=objects(
        numNodes=counts,
        torch=objects(numProcPerNode=processes),
        mpi=objects(
            numProcPerNode=counts,
            mpiImplementation=st.sampled_from(["OpenMPI", "Intel", "MPICH", ""]),
            sshAuthMountPath=words,
            runLauncherAsNode=st.booleans(),
        ),
    ),
    podGroupPolicy=objects(
        coscheduling=objects(scheduleTimeoutSeconds=st.integers(0, 600)),
        volcano=objects(
            networkTopology=objects(
                mode=st.sampled_from(["hard", "soft"]), highestTierAllowed=counts
            )
        ),
    ),
    template=objects(metadata=objects(labels=maps), spec=anything),
)


def runtimes(kind: str) -> SearchStrategy[dict[str, Any]]:
    return objects(
        {
            "apiVersion": st.just("trainer.kubeflow.org/v1alpha1"),
            "kind": st.just(kind),
            "metadata": metadata,
        },
        spec=runtime_spec,
    )


def assert_round_trips(model: type[KubeModel], document: dict[str, Any]) -> None:
    parsed = model.parse(document)
    assert parsed.dump() == document
    assert model.parse(parsed.dump()) == parsed


@given(train_jobs)
def test_train_jobs(document: dict[str, Any]) -> None:
    assert_round_trips(TrainJob, document)


@given(runtimes("TrainingRuntime"))
def test_training_runtimes(document: dict[str, Any]) -> None:
    assert_round_trips(TrainingRuntime, document)


@given(runtimes("ClusterTrainingRuntime"))
def test_cluster_training_runtimes(document: dict[str, Any]) -> None:
    assert_round_trips(ClusterTrainingRuntime, document)
