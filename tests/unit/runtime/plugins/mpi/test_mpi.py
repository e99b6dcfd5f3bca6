import copy
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import pytest

from kftrainer.api.resources import CONFIG_MAPS
from kftrainer.api.trainingruntime import ClusterTrainingRuntime, MPIPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import NO_OBJECTS, GivenObjects
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.framework.extension_points import Watch
from kftrainer.runtime.plugins.mpi.mpi import MPI
from kftrainer.runtime.template import new_info
from kftrainer.runtime.trace import NoTrace
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import (
    NAMESPACE,
    RUNTIMES,
    UID,
    container_of,
    findings,
    in_namespace,
    job_on,
    jobs_of,
    plan,
    planned,
    pod_of,
)
from tests.support.runtimes import mpi as shipped

OPEN_MPI = [
    {"name": "OMPI_MCA_orte_default_hostfile", "value": "/etc/mpi/hostfile"},
    {"name": "OMPI_MCA_orte_keep_fqdn_hostnames", "value": "true"},
    {"name": "OMPI_MCA_orte_set_default_slots", "value": "1"},
    {"name": "OMPI_MCA_plm_rsh_args", "value": "-o ConnectionAttempts=10"},
    {"name": "PRTE_MCA_prte_default_hostfile", "value": "/etc/mpi/hostfile"},
    {"name": "PRTE_MCA_prte_keep_fqdn_hostnames", "value": "false"},
    {"name": "PRTE_MCA_prte_set_default_slots", "value": "1"},
    {"name": "PRTE_MCA_plm_ssh_args", "value": "-o ConnectionAttempts=10"},
]
OPEN_MPI_4, OPEN_MPI_5 = OPEN_MPI[:4], OPEN_MPI[4:]
INTEL = [
    {"name": "I_MPI_HYDRA_HOST_FILE", "value": "/etc/mpi/hostfile"},
    {"name": "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "value": "-o ConnectionAttempts=10"},
    {"name": "I_MPI_PERHOST", "value": "2"},
    {"name": "I_MPI_HYDRA_IFACE", "value": "eth0"},
]
MPICH = [
    {"name": "HYDRA_HOST_FILE", "value": "/etc/mpi/hostfile"},
    {"name": "HYDRA_LAUNCH_EXTRA_ARGS", "value": "-o ConnectionAttempts=10"},
    {"name": "HYDRA_LAUNCHER_EXTRA_ARGS", "value": "-o ConnectionAttempts=10"},
    {"name": "HYDRA_IFACE", "value": "eth0"},
]
KEYS_MOUNT = {"name": "mpi-ssh-auth", "mountPath": "/root/.ssh"}
HOSTFILE_MOUNT = {"name": "mpi-hostfile", "mountPath": "/etc/mpi"}
KEYS_VOLUME = {
    "name": "mpi-ssh-auth",
    "secret": {
        "secretName": "demo-mpi-ssh-auth",
        "defaultMode": 0o600,
        "items": [
            {"key": "ssh-privatekey", "path": "id_rsa"},
            {"key": "ssh-publickey", "path": "id_rsa.pub"},
            {"key": "ssh-publickey", "path": "authorized_keys"},
        ],
    },
}
HOSTFILE_VOLUME = {
    "name": "mpi-hostfile",
    "configMap": {
        "name": "demo-mpi-hostfile",
        "items": [{"key": "hostfile", "path": "hostfile", "mode": 0o444}],
    },
}


def renamed(job: Object, container: str) -> Object:
    """The job with its container called so."""
    job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = container
    return job


def worker(**container: Any) -> Object:
    return replicated_job("node", None, **container)


def launcher(container: str = "node", **body: Any) -> Object:
    return renamed(replicated_job("launcher", **body), container)


def mpi(*jobs: Object, nodes: int | None = None, **policy: Any) -> Object:
    ml_policy: Object = {"mpi": policy} if nodes is None else {"numNodes": nodes, "mpi": policy}
    return runtime(jobs=list(jobs) or [launcher(), worker()], mlPolicy=ml_policy)


def gpus(number: int) -> Object:
    return {"limits": {"nvidia.com/gpu": number}}


def existing(kind: str, name: str, owner: str = "somebody", **body: Any) -> Object:
    reference = {"kind": "TrainJob", "name": "other", "uid": owner, "controller": True}
    metadata = {"name": name, "namespace": NAMESPACE, "ownerReferences": [reference]}
    version = "jobset.x-k8s.io/v1alpha2" if kind == "JobSet" else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def hosts(objects: Mapping[str, Any]) -> list[str]:
    text: str = objects["ConfigMap"]["data"]["hostfile"]
    return text.splitlines()


def pods(objects: Mapping[str, Any]) -> dict[str, int]:
    jobs = jobs_of(objects["JobSet"])
    specs = {name: job["template"]["spec"] for name, job in jobs.items()}
    assert all(spec["completions"] == spec["parallelism"] for spec in specs.values())
    return {name: spec["parallelism"] for name, spec in specs.items()}


# What pods get.


def test_the_launcher_gets_keys_and_hostfile_and_the_worker_keys() -> None:
    document = mpi()
    planned_jobset = plan(job_on(document), document)["JobSet"]
    assert pod_of(planned_jobset, "launcher") == {
        "containers": [
            {
                "name": "node",
                "image": "trainer",
                "volumeMounts": [KEYS_MOUNT, HOSTFILE_MOUNT],
                "env": OPEN_MPI,
            }
        ],
        "volumes": [KEYS_VOLUME, HOSTFILE_VOLUME],
    }
    assert pod_of(planned_jobset, "node") == {
        "containers": [{"name": "node", "image": "trainer", "volumeMounts": [KEYS_MOUNT]}],
        "volumes": [KEYS_VOLUME],
    }


def test_keys_are_mounted_at_the_path_of_the_runtime() -> None:
    document = mpi(sshAuthMountPath="/home/mpiuser/.ssh")
    planned_jobset = plan(job_on(document), document)["JobSet"]
    mounts = [{"name": "mpi-ssh-auth", "mountPath": "/home/mpiuser/.ssh"}]
    assert container_of(planned_jobset)["volumeMounts"] == mounts


def test_template_entries_of_the_same_name_are_replaced_in_place() -> None:
    first = {"name": "A", "value": "a"}
    slots, last = {"name": "OMPI_MCA_orte_set_default_slots", "value": "9"}, {"name": "Z"}
    own, data = {"name": "data", "mountPath": "/root/.ssh"}, {"name": "data", "emptyDir": {}}
    job = launcher(env=[first, slots, last], volumeMounts=[own])
    job["template"]["spec"]["template"]["spec"]["volumes"] = [
        {"name": "mpi-hostfile", "emptyDir": {}},
        data,
    ]
    document = mpi(job, worker())
    planned_jobset = plan(job_on(document), document)["JobSet"]
    container, pod = container_of(planned_jobset, "launcher"), pod_of(planned_jobset, "launcher")
    assert (container["env"], container["volumeMounts"], pod["volumes"]) == (
        [first, OPEN_MPI[2], last, OPEN_MPI[0], OPEN_MPI[1], OPEN_MPI[3], *OPEN_MPI_5],
        [KEYS_MOUNT, HOSTFILE_MOUNT],
        [HOSTFILE_VOLUME, data, KEYS_VOLUME],
    )


def test_lists_that_are_null_in_the_template_are_empty() -> None:
    job = worker(volumeMounts=None)
    job["template"]["spec"]["template"]["spec"]["volumes"] = None
    document = mpi(launcher(), job)
    assert pod_of(plan(job_on(document), document)["JobSet"])["volumes"] == [KEYS_VOLUME]


def test_other_jobs_and_containers_get_nothing() -> None:
    sidecar = {"name": "launcher", "image": "sidecar"}
    job = worker()
    job["template"]["spec"]["template"]["spec"]["containers"].append(sidecar)
    other = replicated_job("metrics", None)
    document = mpi(launcher(), job, other)
    planned_jobset = plan(job_on(document), document)["JobSet"]
    assert container_of(planned_jobset, "node", "launcher") == {
        "name": "launcher",
        "image": "sidecar",
    }
    assert pod_of(planned_jobset, "metrics") == {
        "containers": [{"name": "metrics", "image": "trainer"}]
    }


def test_runtimes_without_an_mpi_policy_are_unchanged() -> None:
    document = runtime(jobs=[launcher(), worker()], mlPolicy={"numNodes": 2})
    planned_jobset = plan(job_on(document), document)
    assert list(planned_jobset) == ["JobSet"]
    assert "volumes" not in pod_of(planned_jobset["JobSet"], "launcher")


def test_container_named_launcher_is_treated_like_node() -> None:
    """Defect D30."""
    document = mpi(launcher("launcher"), worker())
    env = [{"name": "X", "value": "1"}]
    planned_jobset = plan(job_on(document, trainer={"env": env}), document)["JobSet"]
    assert container_of(planned_jobset, "launcher", "launcher") == {
        "name": "launcher",
        "image": "trainer",
        "volumeMounts": [KEYS_MOUNT, HOSTFILE_MOUNT],
        "env": OPEN_MPI + env,
    }


def test_the_environment_and_resources_of_the_job_reach_workers_too() -> None:
    """Defect D30."""
    document = mpi(runLauncherAsNode=False)
    requested = {"env": [{"name": "X", "value": "1"}], "resourcesPerNode": {"requests": {"cpu": 2}}}
    planned_jobset = plan(job_on(document, trainer=requested), document)["JobSet"]
    assert container_of(planned_jobset) == {
        "name": "node",
        "image": "trainer",
        "env": [{"name": "X", "value": "1"}],
        "resources": {"requests": {"cpu": "2"}},
        "volumeMounts": [KEYS_MOUNT],
    }


def test_mpi_environment_has_precedence_over_the_jobs_on_all_nodes() -> None:
    """Defect D19."""
    document = mpi()
    own = [{"name": each["name"], "value": "mine"} for each in OPEN_MPI]
    planned_jobset = plan(job_on(document, trainer={"env": own}), document)["JobSet"]
    assert container_of(planned_jobset, "launcher")["env"] == OPEN_MPI
    assert "env" not in container_of(planned_jobset)


# Implementations.


def launcher_env(document: Object, *others: Object, **trainer: Any) -> list[Object]:
    """The variables of the launcher of a TrainJob that is suspended."""
    job_set = plan(job_on(document, trainer=trainer, suspend=True), document, *others)["JobSet"]
    found: list[Object] = container_of(job_set, "launcher")["env"]
    return found


@pytest.mark.parametrize(("implementation", "env"), [("Intel", INTEL), ("MPICH", MPICH)])
@pytest.mark.parametrize("as_node", [False, True])
def test_launcher_gets_the_variables_of_its_implementation(
    implementation: str, env: list[Object], as_node: bool
) -> None:
    document = mpi(mpiImplementation=implementation, numProcPerNode=2, runLauncherAsNode=as_node)
    assert error_messages(job_on(document), document) == []
    assert launcher_env(document) == env


@pytest.mark.parametrize(("implementation", "env"), [("Intel", INTEL), ("MPICH", MPICH)])
def test_variables_of_the_implementation_are_reserved_except_the_interface(
    implementation: str, env: list[Object]
) -> None:
    document = mpi(mpiImplementation=implementation, numProcPerNode=2)
    mine = [{"name": each["name"], "value": "mine"} for each in [*env, *OPEN_MPI]]
    (error,) = findings(job_on(document, trainer={"env": mine}), document).errors
    reserved = " ".join(sorted(each["name"] for each in env[:3]))
    assert error.detail == (f"must not have reserved envs, invalid envs configured: [{reserved}]")
    others = [{"name": each["name"], "value": "mine"} for each in OPEN_MPI]
    interface = {"name": env[3]["name"], "value": "mine"}
    assert launcher_env(document, env=mine) == [*env[:3], interface, *others]


def test_interface_of_the_template_is_kept() -> None:
    interface = {"name": "HYDRA_IFACE", "value": "net1"}
    document = mpi(launcher(env=[interface]), worker(), mpiImplementation="MPICH", numProcPerNode=2)
    assert launcher_env(document) == [interface, *MPICH[:3]]


def test_interface_is_not_set_on_the_network_of_the_host() -> None:
    job = launcher()
    job["template"]["spec"]["template"]["spec"]["hostNetwork"] = True
    document = mpi(job, worker(), mpiImplementation="MPICH", numProcPerNode=2)
    assert launcher_env(document) == MPICH[:3]


@pytest.mark.parametrize(("nodes", "is_large"), [(64, False), (65, True), (2_000, True)])
@pytest.mark.parametrize("as_node", [False, True])
def test_launcher_of_open_mpi_connects_to_all_of_many_hosts(
    nodes: int, is_large: bool, as_node: bool
) -> None:
    document = mpi(runLauncherAsNode=as_node)
    flat = [{"name": "PRTE_MCA_plm_ssh_no_tree_spawn", "value": "true"}] if is_large else []
    assert launcher_env(document, numNodes=nodes) == OPEN_MPI + flat
    tree = [{"name": "PRTE_MCA_plm_ssh_no_tree_spawn", "value": "false"}]
    assert launcher_env(document, numNodes=nodes, env=tree) == OPEN_MPI + tree


def created(document: Object, *newer: Object) -> Object:
    """The JobSet in the cluster, whose launcher has only these of the newer variables."""
    job_set: Object = copy.deepcopy(plan(job_on(document, suspend=True), document)["JobSet"])
    container = container_of(job_set, "launcher")
    container["env"] = [*OPEN_MPI_4, *newer]
    return job_set


@pytest.mark.parametrize(
    ("newer", "planned_env"),
    [
        (OPEN_MPI_5, OPEN_MPI),
        ([], OPEN_MPI_4),
        (OPEN_MPI_5[1:], OPEN_MPI_4),
    ],
)
def test_variables_of_open_mpi_5_are_planned_only_if_the_jobset_has_them(
    newer: list[Object], planned_env: list[Object]
) -> None:
    document = mpi()
    assert launcher_env(document, created(document, *newer)) == planned_env


def test_variables_of_open_mpi_5_are_not_reserved_in_a_jobset_without_them() -> None:
    """A TrainJob of an earlier release may set them itself."""
    document = mpi()
    mine = [{"name": each["name"], "value": "mine"} for each in OPEN_MPI_5]
    assert launcher_env(document, created(document, *mine), env=mine) == OPEN_MPI_4 + mine


# How many pods there are.


@pytest.mark.parametrize(
    ("processes", "in_runtime", "as_node", "workers"),
    [
        (3, 5, False, 3),
        (3, 5, True, 2),
        (None, 5, False, 5),
        (None, 5, True, 4),
        (None, None, False, 1),
        (None, None, True, 0),
        (1, 5, False, 1),
        (1, 5, True, 0),
    ],
)
def test_number_of_workers_is_num_nodes_minus_a_launcher_that_is_a_node(
    processes: int | None, in_runtime: int | None, as_node: bool, workers: int
) -> None:
    """Defect D30."""
    document = mpi(nodes=in_runtime, runLauncherAsNode=as_node)
    trainer = {} if processes is None else {"numNodes": processes}
    planned_jobset = plan(job_on(document, trainer=trainer), document)
    assert pods(planned_jobset) == {"launcher": 1, "node": workers}
    assert len(hosts(planned_jobset)) == workers + as_node


def test_launcher_parallelism_is_that_of_the_template() -> None:
    """Defect D30."""
    job = launcher()
    job["template"]["spec"]["parallelism"] = 2
    document = mpi(job, worker(), nodes=3)
    assert pods(plan(job_on(document), document)) == {"launcher": 2, "node": 3}


def test_launcher_as_only_node_is_the_only_host() -> None:
    """Defect D30."""
    document = mpi(runLauncherAsNode=True)
    planned_jobset = plan(job_on(document, trainer={"numNodes": 1}), document)
    assert hosts(planned_jobset) == ["demo-launcher-0-0.demo slots=1"]


def test_a_launcher_that_is_missing_is_not_counted_as_a_node() -> None:
    document = mpi(replicated_job("node"), nodes=1, runLauncherAsNode=True)
    planned_jobset = plan(job_on(document), document)
    assert (pods(planned_jobset), hosts(planned_jobset)) == (
        {"node": 1},
        ["demo-node-0-0.demo slots=1"],
    )


def test_a_launcher_can_be_the_only_job() -> None:
    document = mpi(launcher(), runLauncherAsNode=True)
    assert hosts(plan(job_on(document), document)) == ["demo-launcher-0-0.demo slots=1"]


# The hostfile.


def test_hosts_are_in_the_order_of_the_template() -> None:
    document = mpi(worker(), launcher(), nodes=3, runLauncherAsNode=True)
    assert plan(job_on(document), document)["ConfigMap"]["data"] == {
        "hostfile": "demo-node-0-0.demo slots=1\n"
        "demo-node-0-1.demo slots=1\n"
        "demo-launcher-0-0.demo slots=1\n"
    }


def test_launcher_that_is_not_a_node_is_not_a_host() -> None:
    document = mpi(nodes=2)
    assert hosts(plan(job_on(document), document)) == [
        "demo-node-0-0.demo slots=1",
        "demo-node-0-1.demo slots=1",
    ]


def test_hosts_cover_all_replicas_in_the_subdomain() -> None:
    """Defect D28."""
    document = mpi(launcher(), {**worker(), "replicas": 2}, nodes=2)
    document["spec"]["template"]["spec"]["network"] = {"subdomain": "ring"}
    assert hosts(plan(job_on(document), document)) == [
        "demo-node-0-0.ring slots=1",
        "demo-node-0-1.ring slots=1",
        "demo-node-1-0.ring slots=1",
        "demo-node-1-1.ring slots=1",
    ]


def test_the_shipped_runtime_lists_its_workers_before_the_launcher() -> None:
    document = shipped("deepspeed")
    trainer = {"numNodes": 3, "resourcesPerNode": gpus(4)}
    planned_jobset = plan(job_on(document, trainer=trainer), document)
    assert hosts(planned_jobset) == [
        "demo-node-0-0.demo slots=4",
        "demo-node-0-1.demo slots=4",
        "demo-launcher-0-0.demo slots=4",
    ]
    assert pods(planned_jobset) == {"node": 2, "launcher": 1}


def test_a_thousand_nodes_are_a_thousand_lines() -> None:
    document = mpi(runLauncherAsNode=True)
    lines = hosts(plan(job_on(document, trainer={"numNodes": 1000}), document))
    assert lines[-1] == "demo-node-0-998.demo slots=1"
    assert len(lines) == len(set(lines)) == 1000


def test_hostfile_too_large_for_a_config_map_is_rejected() -> None:
    document = mpi()
    job = job_on(document, trainer={"numNodes": 2**31 - 1})
    with pytest.raises(InvalidTrainJobError) as refusal:
        plan(job, document)
    assert str(refusal.value) == (
        "TrainJob team/demo: spec.trainer.numNodes: Invalid value: 2147483647: "
        "the hostfile for this number of nodes does not fit into a ConfigMap"
    )


@pytest.mark.parametrize(
    ("implementation", "launcher_host"),
    [("Intel", "demo-launcher-0-0"), ("MPICH", "demo-launcher-0-0.demo")],
)
def test_hosts_of_hydra_are_separated_from_their_slots_by_a_colon(
    implementation: str, launcher_host: str
) -> None:
    document = mpi(
        nodes=2, mpiImplementation=implementation, numProcPerNode=4, runLauncherAsNode=True
    )
    assert hosts(plan(job_on(document), document)) == [
        f"{launcher_host}:4",
        "demo-node-0-0.demo:4",
    ]


# Slots.


@pytest.mark.parametrize(
    ("in_runtime", "processes", "devices", "slots"),
    [
        (1, None, 0, 1),
        (1, None, 1, 1),
        (1, None, 4, 4),
        (2, None, 4, 2),
        (2, 3, 4, 3),
        (1, 1, 4, 1),
    ],
)
def test_slots_are_specified_or_one_per_accelerator(
    in_runtime: int, processes: int | None, devices: int, slots: int
) -> None:
    resources = gpus(devices) if devices else {}
    document = mpi(launcher(), worker(resources=resources), numProcPerNode=in_runtime)
    trainer = {} if processes is None else {"numProcPerNode": processes}
    planned_jobset = plan(job_on(document, trainer=trainer), document)
    assert hosts(planned_jobset) == [f"demo-node-0-0.demo slots={slots}"]
    env = container_of(planned_jobset["JobSet"], "launcher")["env"]
    assert (env[2], env[6]) == (
        {"name": "OMPI_MCA_orte_set_default_slots", "value": str(slots)},
        {"name": "PRTE_MCA_prte_set_default_slots", "value": str(slots)},
    )


def test_slots_are_counted_in_the_merged_resources() -> None:
    """Defect D25."""
    document = mpi(launcher(), worker(resources=gpus(4)))
    trainer = {"resourcesPerNode": {"requests": {"cpu": 8}}}
    planned_jobset = plan(job_on(document, trainer=trainer), document)
    assert hosts(planned_jobset) == ["demo-node-0-0.demo slots=4"]


def test_slots_are_counted_by_names_of_devices() -> None:
    """Defect D26."""
    resources = {"limits": {"nvidia.com/mig-1g.5gb": 3, "example.com/gpumem": 70}}
    document = mpi(launcher(), worker(resources=resources))
    assert hosts(plan(job_on(document), document)) == ["demo-node-0-0.demo slots=3"]


def test_slots_are_those_of_a_worker_not_of_the_launcher() -> None:
    document = mpi(launcher(resources=gpus(8)), worker(resources=gpus(2)))
    assert hosts(plan(job_on(document), document)) == ["demo-node-0-0.demo slots=2"]


def test_slots_are_those_of_the_launcher_where_there_are_no_workers() -> None:
    document = mpi(
        launcher("launcher", resources=gpus(8)),
        worker(resources=gpus(2)),
        nodes=1,
        runLauncherAsNode=True,
    )
    assert hosts(plan(job_on(document), document)) == ["demo-launcher-0-0.demo slots=8"]


class RecordedTrace(NoTrace):
    """A tape that keeps where the last values came from."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    def note(self, path: str, source: str) -> None:
        self.sources[path] = source


def sources(document: Object, **trainer: Any) -> list[str]:
    """Which fields the number of workers and that of slots come from."""
    trace, job = RecordedTrace(), TrainJob.parse(job_on(document, trainer=trainer))
    RUNTIMES.of(job).new_objects(job, GivenObjects([in_namespace(document)]), trace)
    pod = "spec.replicatedJobs[launcher].template.spec.template.spec"
    return [
        trace.sources["spec.replicatedJobs[node].template.spec.parallelism"],
        trace.sources[f"{pod}.containers[node].env[OMPI_MCA_orte_set_default_slots]"],
    ]


def test_trace_records_the_source_fields_of_the_numbers() -> None:
    in_runtime = "runtime spec.mlPolicy.mpi.numProcPerNode"
    assert [
        sources(mpi(), numNodes=2, numProcPerNode=3),
        sources(mpi(numProcPerNode=3)),
        sources(mpi(launcher(), worker(resources=gpus(2)))),
        sources(mpi(launcher(), worker(resources=gpus(1)))),
    ] == [
        ["spec.trainer.numNodes", "spec.trainer.numProcPerNode"],
        ["default", in_runtime],
        ["default", "accelerators of a node"],
        ["default", in_runtime],
    ]


# The objects, and when they are planned.


def test_secret_and_hostfile_are_owned_by_the_job_and_applied_first() -> None:
    document = mpi()
    planned_jobset = plan(job_on(document), document)
    assert list(planned_jobset) == ["Secret", "ConfigMap", "JobSet"]
    owners = planned_jobset["JobSet"]["metadata"]["ownerReferences"]
    assert planned_jobset["Secret"] == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "demo-mpi-ssh-auth",
            "namespace": NAMESPACE,
            "ownerReferences": owners,
        },
        "type": "kubernetes.io/ssh-auth",
        "immutable": True,
    }
    assert planned_jobset["ConfigMap"] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "demo-mpi-hostfile",
            "namespace": NAMESPACE,
            "ownerReferences": owners,
        },
        "data": {"hostfile": "demo-node-0-0.demo slots=1\n"},
    }


def test_keys_are_generated_only_when_the_secret_is_created() -> None:
    """Defect D44."""
    document = mpi()
    secret = planned(job_on(document), document)[0]
    assert secret.generate is not None
    first, second = secret.generate(), secret.generate()
    data = {key: b64decode(value, validate=True) for key, value in first["data"].items()}
    assert tuple(data) == secret.generated_keys == ("ssh-privatekey", "ssh-publickey")
    assert data["ssh-privatekey"].startswith(b"-----BEGIN EC PRIVATE KEY-----\n")
    assert data["ssh-publickey"].startswith(b"ecdsa-sha2-nistp521 ")
    assert first["data"] != second["data"]
    assert {key: first[key] for key in first if key != "data"} == secret.manifest


def test_only_the_secret_is_random() -> None:
    document = mpi()
    planned_jobset = planned(job_on(document), document)
    assert [each.generate is None for each in planned_jobset] == [False, True, True]
    assert [each.manifest for each in planned_jobset] == [
        each.manifest for each in planned(job_on(document), document)
    ]


def test_existing_secret_is_not_modified() -> None:
    """Defect D44."""
    document = mpi()
    secret = existing("Secret", "demo-mpi-ssh-auth", UID)
    assert list(plan(job_on(document), document, secret)) == ["ConfigMap", "JobSet"]


def test_secret_of_another_owner_is_not_used() -> None:
    """Defect D44."""
    # It is planned nevertheless, so that applying it fails with a message about the taken name.
    document = mpi()
    secret = existing("Secret", "demo-mpi-ssh-auth", "somebody")
    assert list(plan(job_on(document), document, secret)) == ["Secret", "ConfigMap", "JobSet"]


def test_a_secret_of_another_name_or_namespace_is_not_ours() -> None:
    document = mpi()
    elsewhere = existing("Secret", "demo-mpi-ssh-auth")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    others = [existing("Secret", "demo"), elsewhere]
    assert "Secret" in plan(job_on(document), document, *others)


@pytest.mark.parametrize(
    ("suspend", "jobset", "exists", "applied"),
    [
        (False, None, True, True),
        (True, None, True, True),
        (True, {"suspend": False}, True, True),
        (True, {"suspend": True}, True, True),
        (False, {"suspend": True}, True, True),
        (False, {"suspend": False}, True, False),
        (False, {}, True, False),
        (False, {}, False, True),
    ],
)
def test_hostfile_is_unchanged_while_the_jobset_runs(
    suspend: bool, jobset: Object | None, exists: bool, applied: bool
) -> None:
    """Defect D43."""
    document = mpi()
    others = [existing("ConfigMap", "demo-mpi-hostfile")] if exists else []
    others += [] if jobset is None else [existing("JobSet", "demo", UID, spec=jobset)]
    planned_jobset = plan(job_on(document, suspend=suspend), document, *others)
    assert ("ConfigMap" in planned_jobset) == applied


def test_only_metadata_of_config_maps_is_watched_and_no_secrets() -> None:
    assert MPI().declare_watches() == (Watch(CONFIG_MAPS, metadata_only=True),)


# What is wrong.


def error_messages(job: Object, document: Object) -> list[str]:
    """The errors and warnings of admission."""
    return [str(error) for error in findings(job, document).errors]


@pytest.mark.parametrize("implementation", ["", "OpenMPI"])
def test_no_implementation_means_openmpi(implementation: str) -> None:
    """Defect D42."""
    document = mpi(mpiImplementation=implementation)
    assert error_messages(job_on(document), document) == []
    planned_jobset = plan(job_on(document), document)["JobSet"]
    assert container_of(planned_jobset, "launcher")["env"] == OPEN_MPI


def test_unknown_implementation_is_a_runtime_error() -> None:
    document = {**shipped("mlx")}
    parsed = ClusterTrainingRuntime.parse(document)
    assert parsed.spec is not None
    assert parsed.spec.ml_policy is not None
    unknown = MPIPolicy.model_construct(mpi_implementation="Other")
    ml_policy = parsed.spec.ml_policy.model_copy(update={"mpi": unknown})
    spec = parsed.spec.model_copy(update={"ml_policy": ml_policy})
    job = TrainJob.parse(job_on(document))
    info = new_info(job, parsed.model_copy(update={"spec": spec}), NO_OBJECTS)
    message = (
        "ClusterTrainingRuntime mlx-distributed: spec.mlPolicy.mpi.mpiImplementation: "
        'Invalid value: "Other": must be one of OpenMPI, Intel, MPICH'
    )
    with pytest.raises(InvalidRuntimeError) as refusal:
        MPI().enforce_ml_policy(info, job)
    assert str(refusal.value) == message
    (error,) = MPI().validate_train_job(info, None, job).errors
    assert (error.path, error.detail) == ("spec.runtimeRef", message)


def test_worker_without_container_for_the_keys_is_a_runtime_error() -> None:
    document = mpi(launcher(), renamed(worker(), "sshd"))
    path = "spec.template.spec.replicatedJobs[1].template.spec.template.spec.containers"
    with pytest.raises(InvalidRuntimeError) as refusal:
        plan(job_on(document), document)
    assert [error.path for error in refusal.value.errors] == [path]
    (error,) = findings(job_on(document), document).errors
    assert (error.path, path in error.detail) == ("spec.runtimeRef", True)


def test_processes_must_be_a_number() -> None:
    document = mpi()
    job = job_on(document, trainer={"numProcPerNode": "auto"})
    message = (
        'spec.trainer.numProcPerNode: Invalid value: "auto": '
        "must have an int value for MPI TrainJob"
    )
    assert error_messages(job, document) == [message]
    with pytest.raises(InvalidTrainJobError) as refusal:
        plan(job, document)
    assert str(refusal.value) == f"TrainJob team/demo: {message}"


@pytest.mark.parametrize("jobs", [[launcher()], [replicated_job("node")]])
@pytest.mark.parametrize(("processes", "in_runtime"), [(2, 1), (None, 2)])
def test_several_nodes_need_both_jobs_where_the_launcher_is_a_node(
    jobs: list[Object], processes: int | None, in_runtime: int
) -> None:
    document = mpi(*jobs, nodes=in_runtime, runLauncherAsNode=True)
    job = job_on(document, trainer={} if processes is None else {"numNodes": processes})
    message = (
        "spec.trainer.numNodes: Invalid value: 2: must have 1 when MPI trainingRuntime with "
        "enabled runLauncherAsNode does not have either launcher and node"
    )
    assert error_messages(job, document) == [message]
    with pytest.raises(InvalidTrainJobError) as refusal:
        plan(job, document)
    assert str(refusal.value) == f"TrainJob team/demo: {message}"


def test_several_nodes_need_a_job_for_workers() -> None:
    document = mpi(launcher(), nodes=2)
    runtime, jobs = error_messages(job_on(document), document)
    assert "replicatedJobs: Required value: a job named node: the launcher is not a node" in runtime
    message = "must be 1 when the MPI runtime has no job named node"
    assert jobs == f"spec.trainer.numNodes: Invalid value: 2: {message}"


@pytest.mark.parametrize("as_node", [False, True])
def test_number_of_nodes_defaults_to_the_template(as_node: bool) -> None:
    workers = worker()
    workers["template"]["spec"]["parallelism"] = 4
    document = mpi(launcher(), workers, runLauncherAsNode=as_node)
    planned_jobset = plan(job_on(document), document)
    assert pods(planned_jobset) == {"launcher": 1, "node": 4}
    assert len(hosts(planned_jobset)) == 4 + as_node


def test_variables_of_mpi_are_reserved() -> None:
    """Defect D19."""
    document = mpi()
    env = [{"name": each["name"], "value": ""} for each in reversed(OPEN_MPI)]
    job = job_on(document, trainer={"env": [{"name": "X", "value": "1"}, *env]})
    (error,) = findings(job, document).errors
    assert (error.path, error.detail) == (
        "spec.trainer.env",
        "must not have reserved envs, invalid envs configured: "
        "[OMPI_MCA_orte_default_hostfile OMPI_MCA_orte_keep_fqdn_hostnames "
        "OMPI_MCA_orte_set_default_slots OMPI_MCA_plm_rsh_args PRTE_MCA_plm_ssh_args "
        "PRTE_MCA_prte_default_hostfile PRTE_MCA_prte_keep_fqdn_hostnames "
        "PRTE_MCA_prte_set_default_slots]",
    )


@pytest.mark.parametrize("trainer", [{}, {"numNodes": 4, "numProcPerNode": 2}])
def test_valid_jobs_of_shipped_runtimes_pass(trainer: Object) -> None:
    document = shipped("deepspeed")
    assert error_messages(job_on(document, trainer=trainer), document) == []
    assert error_messages(job_on(document), document) == []


def test_rules_of_mpi_are_for_mpi_only() -> None:
    document = runtime(jobs=[replicated_job("node")], mlPolicy={"numNodes": 1})
    env = [{"name": OPEN_MPI[0]["name"], "value": ""}]
    assert error_messages(job_on(document, trainer={"env": env, "numNodes": 2}), document) == []
