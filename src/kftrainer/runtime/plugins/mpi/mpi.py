"""MPI plugin: a hostfile for the launcher, and SSH keys for launcher and nodes."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar

from kftrainer.api import names
from kftrainer.api.resources import CONFIG_MAPS, SECRETS
from kftrainer.api.trainingruntime import MPIPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, invalid
from kftrainer.kube.objects.resource import Manifest, is_controlled_by
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.framework.extension_points import (
    APPLY_VERBS,
    ComponentBuilder,
    CustomValidation,
    EnforceMLPolicy,
    NodeLayoutExtension,
    PolicyExtension,
    RBACExtension,
    RBACRule,
    RuntimeValidation,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.framework.policies import FieldPolicy
from kftrainer.runtime.info import (
    NO_TRAINER,
    RUNTIME,
    AnyRuntime,
    Info,
    claimed_job_set,
    key_of_job,
    runs,
    trainer_container,
)
from kftrainer.runtime.object_builders import Piece, env_var, owned
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.mpi.implementations import (
    HOSTFILE,
    HOSTFILE_DIRECTORY,
    LARGEST_FLAT_LAUNCH,
    SLOTS,
    Variable,
    implementation_of,
    reserved_variables,
)
from kftrainer.runtime.plugins.mpi.layout import layout_of
from kftrainer.runtime.plugins.mpi.rules import MPIRule
from kftrainer.runtime.plugins.mpi.ssh_keys import new_key_pair
from kftrainer.runtime.plugins.mpi.validation import mpi_errors
from kftrainer.runtime.plugins.user_env import reserved_env_errors
from kftrainer.runtime.podset import Container, NodeLayout, PodSet
from kftrainer.runtime.resources.node_counts import count_of
from kftrainer.runtime.template import subject_of
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.trainjob_warnings import oversubscribed_devices

KEYS = "mpi-ssh-auth"  # name of the volume and suffix of the Secret's name
PRIVATE_KEY, PUBLIC_KEY = "ssh-privatekey", "ssh-publickey"
KEY_FILES = ((PRIVATE_KEY, "id_rsa"), (PUBLIC_KEY, "id_rsa.pub"), (PUBLIC_KEY, "authorized_keys"))
SourcedVariable = tuple[str, str, str]  # name, value, and the field that the value comes from
HOSTFILE_VOLUME = "mpi-hostfile"  # name of the volume and suffix of the ConfigMap's name
READABLE_BY_ALL = 0o444
# Files of a volume belong to root, and ssh rejects its user's keys if others can read them.
HOME_OF_ROOT, OWNER_ONLY = "/root/", 0o600
LARGEST_CONFIG_MAP = 1024 * 1024  # bytes of data that the API server accepts
# Containers that MPI runs in, by the name of their job.
CONTAINERS = {
    names.JOB_NODE: (names.CONTAINER_NODE,),
    names.JOB_LAUNCHER: (names.CONTAINER_NODE, names.JOB_LAUNCHER),
}
POLICY = "mlPolicy.mpi"
NUM_NODES, PROCESSES = "spec.trainer.numNodes", "spec.trainer.numProcPerNode"


MPI_POLICY = FieldPolicy(
    "spec.mlPolicy.mpi", lambda spec: spec.ml_policy.mpi if spec.ml_policy else None
)


class MPI(
    EnforceMLPolicy,
    ComponentBuilder,
    CustomValidation,
    RuntimeValidation,
    PolicyExtension,
    NodeLayoutExtension,
    WatchExtension,
    RBACExtension,
):
    """Prepare a launcher and its workers, for runtimes with an mpi policy."""

    name: ClassVar[str] = "MPI"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Set the number of workers; mount keys in all pods and the hostfile in the launcher."""
        policy = info.policy
        if not isinstance(policy, MPIPolicy):
            return
        _refuse(info, job, policy)
        _count_workers(info, job)
        variables, defaults = _variables(info, job, policy)
        info.reserved_env.update(name for name, _, _ in variables)
        for pod_set in info.pod_sets:
            if pod_set.name in CONTAINERS:
                _add_keys(pod_set, job, policy)
            if pod_set.name == names.JOB_LAUNCHER:
                _add_hostfile(pod_set, job)
                _set_variables(pod_set, variables, defaults)

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        """Return the Secret unless ours exists, and the hostfile unless it may be in use."""
        policy = info.policy
        if not isinstance(policy, MPIPolicy):
            return ()
        planned = []
        keys = info.existing.get(SECRETS, key_of_job(job, _name(job, KEYS)))
        if keys is None or not is_controlled_by(keys["metadata"], job.metadata.uid):
            secret = {
                **owned(SECRETS, job, _name(job, KEYS)),
                "type": "kubernetes.io/ssh-auth",
                "immutable": True,
            }
            generate = partial(_with_keys, secret)
            planned.append(
                PlannedObject(SECRETS, secret, generate, generated_keys=(PRIVATE_KEY, PUBLIC_KEY))
            )
        hostfile = info.existing.get(CONFIG_MAPS, key_of_job(job, _name(job, HOSTFILE_VOLUME)))
        if hostfile is None or not runs(job, info.existing):
            config_map = owned(CONFIG_MAPS, job, _name(job, HOSTFILE_VOLUME))
            config_map["data"] = {HOSTFILE: _hostfile(info, job, policy)}
            sources = {f"data[{HOSTFILE}]": "hosts and slots of the nodes"}
            planned.append(PlannedObject(CONFIG_MAPS, config_map, sources=sources))
        return planned

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Validate the runtime, the number of nodes and the reserved variables."""
        findings = ValidationResult()
        policy = info.policy
        if not isinstance(policy, MPIPolicy):
            return findings
        if broken := [*mpi_errors(info.runtime, policy)]:
            detail = str(InvalidRuntimeError(subject_of(info.runtime), *broken))
            reference, rule = new.spec.runtime_ref.dump(), Rule.RUNTIME_UNUSABLE
            findings.add_errors(invalid("spec.runtimeRef", reference, detail, rule=rule))
        findings.add_errors(
            *_train_job_errors(info, new, policy),
            *reserved_env_errors(
                info,
                new,
                reserved_variables(policy),
                rule=MPIRule.MPI_RESERVED_ENV,
            ),
        )
        findings.add_warnings(
            *oversubscribed_devices(
                *_slots(info, new, policy), info.devices(_node_resources(info, policy))
            )
        )
        return findings

    def validate_runtime(self, runtime: AnyRuntime, _info: Info | None) -> ValidationResult:
        """Validate the jobs and containers that MPI needs."""
        policy = MPI_POLICY.of(runtime)
        return ValidationResult([] if policy is None else [*mpi_errors(runtime, policy)])

    def declare_policy(self) -> FieldPolicy[MPIPolicy]:
        """Return the policy `mpi`."""
        return MPI_POLICY

    def node_layout(self, runtime: AnyRuntime) -> NodeLayout | None:
        """Return the layout with a launcher and workers, for runtimes with an mpi policy."""
        ml_policy = runtime.spec.ml_policy if runtime.spec else None
        policy = ml_policy.source if ml_policy else None
        return layout_of(policy) if isinstance(policy, MPIPolicy) else None

    def declare_rbac_rules(self) -> Sequence[RBACRule]:
        """Return rules to build Secrets, without reading them, and ConfigMaps."""
        return RBACRule(SECRETS, ("create", "patch")), RBACRule(CONFIG_MAPS, APPLY_VERBS)

    def declare_watches(self) -> Sequence[Watch]:
        """Watch ConfigMaps, but not Secrets, which needs the permission to read all of them."""
        return (Watch(CONFIG_MAPS, metadata_only=True),)


def _refuse(info: Info, job: TrainJob, policy: MPIPolicy) -> None:
    if broken := [*mpi_errors(info.runtime, policy)]:
        raise InvalidRuntimeError(subject_of(info.runtime), *broken)
    if errors := [*_train_job_errors(info, job, policy)]:
        raise InvalidTrainJobError(subject_of(job), *errors)


def _train_job_errors(info: Info, job: TrainJob, policy: MPIPolicy) -> Iterator[FieldError]:
    requested = (job.spec.trainer or NO_TRAINER).num_proc_per_node
    if isinstance(requested, str):
        detail = "must have an int value for MPI TrainJob"
        yield invalid(PROCESSES, requested, detail, rule=MPIRule.MPI_PROCESSES)
    num_nodes = _num_nodes(info, job)
    if num_nodes == 1:
        return
    launcher, worker = info.pod_set(names.JOB_LAUNCHER), info.pod_set(names.JOB_NODE)
    if policy.run_launcher_as_node and (launcher is None or worker is None):
        detail = (
            "must have 1 when MPI trainingRuntime with enabled runLauncherAsNode "
            "does not have either launcher and node"
        )
        yield invalid(NUM_NODES, num_nodes, detail, rule=MPIRule.MPI_ONE_NODE)
    elif worker is None:
        detail = "must be 1 when the MPI runtime has no job named node"
        yield invalid(NUM_NODES, num_nodes, detail, rule=MPIRule.MPI_ONE_NODE)


def _num_nodes(info: Info, job: TrainJob) -> int:
    return info.num_nodes(job) or 1


def _count_workers(info: Info, job: TrainJob) -> None:
    worker = info.pod_set(names.JOB_NODE)
    if worker is not None and (info.num_nodes(job) or worker.count == 1):
        worker.set_count(count_of(worker, info, job), info.num_nodes_source(job))


def _slots(info: Info, job: TrainJob, policy: MPIPolicy) -> tuple[int, str]:
    """Return the number of processes per node and the field that it comes from."""
    requested = (job.spec.trainer or NO_TRAINER).num_proc_per_node
    if isinstance(requested, int):
        return requested, PROCESSES
    if policy.num_proc_per_node == 1:
        devices = info.devices(_node_resources(info, policy))
        if devices > 1:
            return devices, "accelerators of a node"
    return policy.num_proc_per_node, f"{RUNTIME} spec.mlPolicy.mpi.numProcPerNode"


def _node_resources(info: Info, policy: MPIPolicy) -> Mapping[str, Any]:
    """Return the resources of a node: a worker's or, without workers, the launcher's."""
    pod_sets = (info.pod_set(names.JOB_NODE), info.pod_set(names.JOB_LAUNCHER))
    found = (trainer_container(each, layout_of(policy)) for each in pod_sets if each and each.total)
    container = next(filter(None, found), info.trainer_container)
    return container.resources if container is not None else {}


def _add_keys(pod_set: PodSet, job: TrainJob, policy: MPIPolicy) -> None:
    items = [{"key": key, "path": path} for key, path in KEY_FILES]
    secret: dict[str, Any] = {"secretName": _name(job, KEYS), "items": items}
    if policy.ssh_auth_mount_path.startswith(HOME_OF_ROOT):
        secret["defaultMode"] = OWNER_ONLY
    pod_set.add_volume({"name": KEYS, "secret": secret}, POLICY)
    for container in _containers(pod_set):
        container.mount(
            {"name": KEYS, "mountPath": policy.ssh_auth_mount_path},
            f"{RUNTIME} spec.mlPolicy.mpi.sshAuthMountPath",
        )


def _add_hostfile(launcher: PodSet, job: TrainJob) -> None:
    item = {"key": HOSTFILE, "path": HOSTFILE, "mode": READABLE_BY_ALL}
    config_map = {"name": _name(job, HOSTFILE_VOLUME), "items": [item]}
    launcher.add_volume({"name": HOSTFILE_VOLUME, "configMap": config_map}, POLICY)
    for container in _containers(launcher):
        container.mount({"name": HOSTFILE_VOLUME, "mountPath": HOSTFILE_DIRECTORY}, POLICY)


def _variables(
    info: Info, job: TrainJob, policy: MPIPolicy
) -> tuple[Sequence[SourcedVariable], Sequence[SourcedVariable]]:
    """Return the reserved variables of the launcher, and defaults of other variables.

    The environment of an existing JobSet is immutable. If an earlier release created it, without
    the newer variables, they are not planned, so that the plan still equals the JobSet.
    """
    implementation = implementation_of(policy)
    slots, source = _slots(info, job, policy)

    def sourced(variables: Iterable[Variable]) -> list[SourcedVariable]:
        return [
            (name, str(slots), source) if value is SLOTS else (name, value, POLICY)
            for name, value in variables
        ]

    reserved = sourced(implementation.variables)
    newer = sourced(implementation.newer_variables)
    if not _live_launcher_has(newer, job, info):
        return reserved, ()
    defaults = list[Variable]()
    if sum(each.total for each in _nodes(info, policy)) > LARGEST_FLAT_LAUNCH:
        defaults += implementation.defaults_of_large_jobs
    launcher = info.pod_set(names.JOB_LAUNCHER)
    if launcher is not None and not launcher.spec.get("hostNetwork"):
        defaults += implementation.defaults_of_pod_networks
    return [*reserved, *newer], sourced(defaults)


def _live_launcher_has(variables: Sequence[SourcedVariable], job: TrainJob, info: Info) -> bool:
    """Whether the launcher of the live JobSet has the variables; true if there is no JobSet."""
    job_set = claimed_job_set(job, info.existing)
    if job_set is None:
        return True
    wanted = {name: value for name, value, _ in variables}
    for replicated_job in job_set["spec"].get("replicatedJobs") or ():
        if replicated_job["name"] == names.JOB_LAUNCHER:
            for container in replicated_job["template"]["spec"]["template"]["spec"]["containers"]:
                env = {each["name"]: each.get("value") for each in container.get("env") or ()}
                if container["name"] in CONTAINERS[names.JOB_LAUNCHER]:
                    return wanted.items() <= env.items()
    return False


def _set_variables(
    launcher: PodSet, variables: Sequence[SourcedVariable], defaults: Sequence[SourcedVariable]
) -> None:
    for container in _containers(launcher):
        present = {each.get("name") for each in container.env}
        missing = [each for each in defaults if each[0] not in present]
        container.set_envs(
            [(env_var(name, value), source) for name, value, source in (*variables, *missing)]
        )


def _containers(pod_set: PodSet) -> list[Container]:
    return [each for each in pod_set.containers if each.name in CONTAINERS[pod_set.name]]


def _hostfile(info: Info, job: TrainJob, policy: MPIPolicy) -> str:
    """Return the hostfile, with a line for each node in the order of the template."""
    tail = f"{implementation_of(policy).slots_separator}{_slots(info, job, policy)[0]}\n"
    # More lines than that always exceed the limit, so they are not created.
    some = islice(_hosts(info, policy), LARGEST_CONFIG_MAP // len(tail) + 1)
    hostfile = tail.join(chain(some, ("",)))
    if len(hostfile) > LARGEST_CONFIG_MAP:
        detail = "the hostfile for this number of nodes does not fit into a ConfigMap"
        rule = MPIRule.MPI_HOSTFILE_TOO_LARGE
        error = invalid(NUM_NODES, _num_nodes(info, job), detail, rule=rule)
        raise InvalidTrainJobError(subject_of(job), error)
    return hostfile


def _hosts(info: Info, policy: MPIPolicy) -> Iterator[str]:
    """Yield the host names of the nodes."""
    has_short_launcher = implementation_of(policy).has_short_launcher
    for pod_set in _nodes(info, policy):
        for host in pod_set.endpoints:
            is_short = has_short_launcher and pod_set.name == names.JOB_LAUNCHER
            yield host.partition(".")[0] if is_short else host


def _nodes(info: Info, policy: MPIPolicy) -> list[PodSet]:
    """Return the PodSets whose pods are hosts, in the order of the template."""
    nodes = {names.JOB_NODE, *([names.JOB_LAUNCHER] if policy.run_launcher_as_node else [])}
    return [each for each in info.pod_sets if each.name in nodes]


def _with_keys(secret: Piece) -> Manifest:
    keys = new_key_pair()
    data = {PRIVATE_KEY: keys.private, PUBLIC_KEY: keys.public}
    return {**secret, "data": {key: b64encode(value).decode() for key, value in data.items()}}


def _name(job: TrainJob, suffix: str) -> str:
    return f"{job.metadata.name}-{suffix}"
