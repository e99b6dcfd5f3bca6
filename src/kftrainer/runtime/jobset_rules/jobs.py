"""JobSet's rules for replicated jobs, their names and their order."""

from collections.abc import Iterator

from kftrainer.runtime.jobset_rules.naming import (
    label_faults,
    prefixed_path_faults,
    size,
    subdomain_faults,
)
from kftrainer.runtime.jobset_rules.refusal import Refusal
from kftrainer.runtime.jobset_rules.shape import Job, Shape
from kftrainer.runtime.validation.names import POD_SUFFIX

MOST_PODS = 2**31 - 1
LONGEST_MANAGER = 63  # bytes
LONG_SUBDOMAIN = ".spec.network.subdomain is too long, must be less than 63 characters"
LONG_GROUP = ".spec.replicatedJob[].groupName is too long, must be less than 63 characters"
LONG_JOB = "JobSet name is too long, job names generated for this JobSet will exceed 63 characters"
LONG_POD = "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"


def job_refusals(shape: Shape) -> Iterator[Refusal]:
    """Yield rejections of the replicated jobs, the network and the managedBy field."""
    yield from _order_refusals(shape)
    yield from _network_refusals(shape)
    yield from _manager_refusals(shape)
    for job in shape.jobs:
        for fault in label_faults(job.group, if_long=LONG_GROUP):
            yield Refusal(f"{job.path}.groupName", fault)
        if shape.name is not None:
            yield from _refusals_with_name(job, shape.name)


def _order_refusals(shape: Shape) -> Iterator[Refusal]:
    """Yield rejections of dependencies: jobs can only depend on earlier jobs or themselves."""
    if shape.is_in_order and any(job.depends_on is not None for job in shape.jobs):
        yield Refusal("spec", "StartupPolicy and DependsOn APIs are mutually exclusive")
    if shape.jobs and shape.jobs[0].depends_on is not None:
        text = "DependsOn can't be set for the first ReplicatedJob"
        yield Refusal(f"{shape.jobs[0].path}.dependsOn", text)
    known: set[str] = set()
    for job in shape.jobs:
        known.add(job.name)
        for index, other in enumerate(job.depends_on or ()):
            if other not in known:
                text = f"replicatedJob: {job.name} cannot depend on replicatedJob: {other}"
                yield Refusal(f"{job.path}.dependsOn[{index}].name", text)


def _network_refusals(shape: Shape) -> Iterator[Refusal]:
    if shape.subdomain:
        for fault in subdomain_faults(shape.subdomain):
            yield Refusal("spec.network.subdomain", fault)
        for fault in label_faults(shape.subdomain, if_long=LONG_SUBDOMAIN):
            yield Refusal("spec.network.subdomain", fault)


def _manager_refusals(shape: Shape) -> Iterator[Refusal]:
    if shape.managed_by is not None:
        for fault in prefixed_path_faults(shape.managed_by):
            yield Refusal("spec.managedBy", fault)
        if size(shape.managed_by) > LONGEST_MANAGER:
            yield Refusal("spec.managedBy", f"may not be more than {LONGEST_MANAGER} bytes")


def _refusals_with_name(job: Job, name: str) -> Iterator[Refusal]:
    """Yield rejections that depend on the TrainJob's name and the numbers of pods."""
    if job.parallelism * job.replicas > MOST_PODS:
        text = (
            f"the product of replicas and parallelism must not exceed {MOST_PODS} "
            f"for replicatedJob '{job.name}'"
        )
        yield Refusal(job.path, text)
    last_job = f"{name}-{job.name}-{job.replicas - 1}"
    for fault in label_faults(last_job, if_long=LONG_JOB):
        yield Refusal(f"{job.path}.name", fault)
    if job.is_indexed and job.completions is not None:
        last_pod = f"{last_job}-{job.completions - 1}{POD_SUFFIX}"
        for fault in label_faults(last_pod, if_long=LONG_POD):
            yield Refusal(f"{job.path}.name", fault)
