"""Other containers of a runtime that get the environment of torchrun: `torch.envInjection`."""

from collections.abc import Iterator, Mapping, Sequence

from kftrainer.api import names
from kftrainer.api.trainingruntime import EnvInjectionTarget, TorchPolicy
from kftrainer.kube.objects.field_errors import FieldError, invalid, required
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.plugins.torch.rules import TorchRule
from kftrainer.runtime.podset import Container
from kftrainer.runtime.template import JOBS_PATH
from kftrainer.runtime.validation.runtime_jobs import whole_jobs

PATH = "spec.mlPolicy.torch.envInjection.targets"
MISSING = 'envInjection target podSet "{}" container "{}" not found in runtime template'


def targets_of(policy: TorchPolicy) -> Sequence[EnvInjectionTarget]:
    """Return the targets of the policy's envInjection."""
    return (policy.env_injection and policy.env_injection.targets) or ()


def injection_errors(runtime: AnyRuntime, policy: TorchPolicy) -> Iterator[FieldError]:
    """Yield errors for targets that the runtime does not have; paths are in the runtime."""
    targets = targets_of(policy)
    if not targets:
        return
    jobs = {job.name: job for job in whole_jobs(runtime)}
    for index, target in enumerate(targets):
        job = jobs.get(target.job_name)
        found = () if job is None else (*job.containers, *job.init_containers)
        for place, name in enumerate(target.container_names):
            if name not in found:
                where = f"{PATH}[{index}].containerNames[{place}]"
                detail = MISSING.format(target.job_name, name)
                yield invalid(where, name, detail, rule=TorchRule.TORCH_ENV_INJECTION)
    if jobs and all(job.step != names.STEP_TRAINER for job in jobs.values()):
        step = f"{names.LABEL_ANCESTOR_STEP}: {names.STEP_TRAINER}"
        detail = f"a job with the label {step}, whose nodes the environment describes"
        yield required(JOBS_PATH, detail, rule=TorchRule.TORCH_ENV_INJECTION)


def containers_by_job(policy: TorchPolicy) -> Mapping[str, Sequence[str]]:
    """Return the names of the target containers by the names of their jobs."""
    return {target.job_name: target.container_names for target in targets_of(policy)}


def injected(info: Info, policy: TorchPolicy) -> Iterator[tuple[Container, str]]:
    """Yield the target containers, each with the path of its target in the runtime."""
    for index, target in enumerate(targets_of(policy)):
        pod_set = info.pod_set(target.job_name)
        if pod_set is None:
            continue
        for name in target.container_names:
            container = pod_set.container(name) or pod_set.init_container(name)
            if container is not None:
                yield container, f"{PATH}[{index}]"
