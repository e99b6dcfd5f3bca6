"""Torch plugin: prepares pods for torchrun or torchtune."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kftrainer.api import names
from kftrainer.api.trainingruntime import TorchPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, invalid
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.framework.extension_points import (
    CustomValidation,
    EnforceMLPolicy,
    PolicyExtension,
    RuntimeValidation,
)
from kftrainer.runtime.framework.policies import FieldPolicy
from kftrainer.runtime.info import NO_TRAINER, RUNTIME, AnyRuntime, Info
from kftrainer.runtime.object_builders import (
    COMPLETION_INDEX,
    Piece,
    by_port,
    env_from_field,
    env_var,
)
from kftrainer.runtime.plugins.torch import torchtune
from kftrainer.runtime.plugins.torch.env_injection import (
    containers_by_job,
    injected,
    injection_errors,
)
from kftrainer.runtime.plugins.torch.rules import TorchRule
from kftrainer.runtime.plugins.torch.torchtune import Tuning
from kftrainer.runtime.plugins.user_env import reserved_env_errors, set_user_env
from kftrainer.runtime.podset import Container
from kftrainer.runtime.resources.devices import cpus, is_accelerator
from kftrainer.runtime.resources.pod_requests import merge_resources
from kftrainer.runtime.resources.quantities import HALVES, canonical_resources
from kftrainer.runtime.template import subject_of
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.trainjob_warnings import oversubscribed_devices

# Environment variables that torchrun reads.
NNODES, NPROC_PER_NODE, NODE_RANK = "PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"
MASTER_ADDR, MASTER_PORT = "PET_MASTER_ADDR", "PET_MASTER_PORT"
TORCH_ENV = (NNODES, NPROC_PER_NODE, NODE_RANK, MASTER_ADDR, MASTER_PORT)
PORT = {"containerPort": names.TRAINER_PORT}
POLICY = "mlPolicy.torch"


TORCH_POLICY = FieldPolicy(
    f"spec.{POLICY}", lambda spec: spec.ml_policy.torch if spec.ml_policy else None
)


class Torch(EnforceMLPolicy, CustomValidation, RuntimeValidation, PolicyExtension):
    """Set the variables that torchrun reads: number of nodes, own rank, address of the first."""

    name: ClassVar[str] = "Torch"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Set the environment for torchrun, or the command for torchtune."""
        policy = info.policy
        if not isinstance(policy, TorchPolicy):
            return
        if broken := [*injection_errors(info.runtime, policy)]:
            raise InvalidRuntimeError(subject_of(info.runtime), *broken)
        info.reserved_env.update(TORCH_ENV)
        trainer, container = info.trainer, info.trainer_container
        if trainer is None or container is None:
            return
        trainer.set_count(_nodes(info, job), info.num_nodes_source(job))
        set_user_env(container, job, info.reserved_env)
        host = info.first_host(job, trainer)
        if _is_torchtune(job):
            container.set_envs(_ranks(container, info, job))
            _set_tune_command(info, job, host)
        else:
            container.set_envs([*_ranks(container, info, job), *_master(host)])
        _open_port(container)
        for other, target in injected(info, policy):
            env = (*_ranks(container, info, job), *_master(host))
            other.set_envs([(variable, f"{RUNTIME} {target}") for variable, _ in env])

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Validate reserved variables, and the torchtune configuration if it is used."""
        findings = ValidationResult()
        policy = info.policy
        if isinstance(policy, TorchPolicy):
            if broken := [*injection_errors(info.runtime, policy)]:
                detail = str(InvalidRuntimeError(subject_of(info.runtime), *broken))
                reference = new.spec.runtime_ref.dump()
                unusable = Rule.RUNTIME_UNUSABLE
                findings.add_errors(invalid("spec.runtimeRef", reference, detail, rule=unusable))
            rule, others = TorchRule.TORCH_RESERVED_ENV, containers_by_job(policy)
            findings.add_errors(
                *reserved_env_errors(info, new, TORCH_ENV, rule=rule, others=others)
            )
            if _is_torchtune(new):
                findings.add_errors(*_tune_errors(info, new))
            requested, source = _requested_processes(info, new)
            devices = info.devices(_resources(info, new))
            findings.add_warnings(*oversubscribed_devices(requested, source, devices))
        return findings

    def validate_runtime(self, runtime: AnyRuntime, _info: Info | None) -> ValidationResult:
        """Validate the containers that envInjection names."""
        policy = TORCH_POLICY.of(runtime)
        return ValidationResult([] if policy is None else [*injection_errors(runtime, policy)])

    def declare_policy(self) -> FieldPolicy[TorchPolicy]:
        """Return the policy `torch`."""
        return TORCH_POLICY


def _is_torchtune(job: TrainJob) -> bool:
    """Whether the command is `tune run`, so that the plugin adds the rest of it."""
    return (job.spec.trainer or NO_TRAINER).command == torchtune.ENTRYPOINT


def _requested_processes(info: Info, job: TrainJob) -> tuple[int | str, str]:
    """Return numProcPerNode of the TrainJob or else the runtime, and the field it is from."""
    requested = (job.spec.trainer or NO_TRAINER).num_proc_per_node
    if requested is not None:
        return requested, "spec.trainer.numProcPerNode"
    policy = info.policy
    if isinstance(policy, TorchPolicy) and policy.num_proc_per_node is not None:
        return policy.num_proc_per_node, f"{RUNTIME} spec.{POLICY}.numProcPerNode"
    return "auto", POLICY


def _processes_for_torchrun(
    requested: int | str, info: Info, resources: Mapping[str, Any]
) -> int | str:
    """Return the value to pass to torchrun, which counts accelerators itself."""
    if requested == "cpu" or (requested == "auto" and not info.devices(resources)):
        return max(1, cpus(resources))
    return requested


def _resources(info: Info, job: TrainJob) -> Mapping[str, Any]:
    """Return the resources of a node.

    Without a trainer, the TrainJob's are merged into those of the job `node`, for validation only.
    """
    if info.trainer_container is not None:
        return info.trainer_container.resources
    node = info.pod_set(names.JOB_NODE)
    container = node.container(names.CONTAINER_NODE) if node is not None else None
    requested = (job.spec.trainer or NO_TRAINER).resources_per_node or {}
    canonical, errors = canonical_resources(requested, torchtune.RESOURCES)
    # The validation of the TrainJob reports the errors.
    base = container.resources if container is not None else {}
    return merge_resources(base, {} if errors else canonical)


def _nodes(info: Info, job: TrainJob) -> int:
    return info.num_nodes(job) or 1


def _ranks(container: Container, info: Info, job: TrainJob) -> Sequence[tuple[Piece, str]]:
    requested, source = _requested_processes(info, job)
    processes = _processes_for_torchrun(requested, info, container.resources)
    return (
        (env_var(NNODES, _nodes(info, job)), info.num_nodes_source(job)),
        (env_var(NPROC_PER_NODE, processes), source),
        (env_from_field(NODE_RANK, COMPLETION_INDEX), POLICY),
    )


def _master(host: str) -> Sequence[tuple[Piece, str]]:
    return (
        (env_var(MASTER_ADDR, host), POLICY),
        (env_var(MASTER_PORT, names.TRAINER_PORT), POLICY),
    )


def _open_port(container: Container) -> None:
    """Add the port, unless the container has it: others may refer to its name."""
    if all(by_port(port) != by_port(PORT) for port in container.ports):
        container.add_port({**PORT}, POLICY)


def _set_tune_command(info: Info, job: TrainJob, host: str) -> None:
    tuning, name = _tuning(info, job), info.runtime_metadata.name
    found = torchtune.planning_errors(tuning, name, _requested_args(job))
    errors = [_with_source(error, info, job) for error in found]
    if errors:
        raise InvalidTrainJobError(subject_of(job), *errors)
    endpoint = f"{host}:{names.TRAINER_PORT}"
    info.command = tuning.command(endpoint, _template_words(info, "command"))
    info.command_source = "spec.trainer.command (torchtune)"


def _tune_errors(info: Info, job: TrainJob) -> Sequence[FieldError]:
    tuning, name = _tuning(info, job), info.runtime_metadata.name
    processes, _ = _requested_processes(info, job)
    resources = _resources(info, job)
    errors = (
        *torchtune.planning_errors(tuning, name, _requested_args(job)),
        *torchtune.support_errors(tuning, name, processes, resources),
    )
    return [_with_source(error, info, job) for error in errors]


def _with_source(error: FieldError, info: Info, job: TrainJob) -> FieldError:
    """Return the error; if the TrainJob does not set the field, add where its value is set."""
    trainer, source = job.spec.trainer or NO_TRAINER, ""
    if error.path == torchtune.NUM_NODES and trainer.num_nodes is None:
        source = "spec.mlPolicy.numNodes"
    elif error.path == torchtune.PROCESSES and trainer.num_proc_per_node is None:
        source = f"spec.{POLICY}.numProcPerNode"
    elif error.path == torchtune.RESOURCES and not (
        _requests_accelerators(trainer.resources_per_node) or info.claimed.count
    ):
        source = f"the resources of the container {names.CONTAINER_NODE}"
        if not info.devices(_resources(info, job)):
            return error  # neither the TrainJob nor the container requests accelerators
    if not source:
        return error
    hint = f"the runtime sets it in {source}, unless the TrainJob sets {error.path}"
    return replace(error, detail=f"{error.detail}: {hint}")


def _requests_accelerators(resources: Mapping[str, Any] | None) -> bool:
    """Whether the TrainJob's resourcesPerNode include an accelerator."""
    halves = ((resources or {}).get(half) or {} for half in HALVES)
    return any(is_accelerator(name) for half in halves for name in half)


def _tuning(info: Info, job: TrainJob) -> Tuning:
    metadata, resources = info.runtime_metadata, _resources(info, job)
    requested, _ = _requested_processes(info, job)
    processes = _processes_for_torchrun(requested, info, resources)
    if not info.claimed.is_known and requested in ("auto", "gpu"):
        processes = 1  # so that no rule about devices rejects the TrainJob
    template = _template_words(info, "command")
    return Tuning(
        model=torchtune.model_of(metadata.name, metadata.annotations, template),
        method=torchtune.method_of(_args(info, job)),
        nodes=_nodes(info, job),
        processes=processes if isinstance(processes, int) else info.devices(resources),
    )


def _args(info: Info, job: TrainJob) -> Sequence[str]:
    """Return the arguments that the container will have."""
    return _requested_args(job) or _template_words(info, "args")


def _requested_args(job: TrainJob) -> Sequence[str]:
    return (job.spec.trainer or NO_TRAINER).args or ()


def _template_words(info: Info, field: str) -> Sequence[str]:
    container = info.trainer_container
    words: Sequence[str] = (container.body.get(field) if container is not None else None) or ()
    return words
