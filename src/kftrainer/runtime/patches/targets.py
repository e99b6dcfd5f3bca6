"""Validates overrides and runtime patches: managers, names of jobs and containers, variables."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from kftrainer.api import names
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, forbidden, invalid
from kftrainer.kube.schema.metadata import LONGEST_NAME, SUBDOMAIN
from kftrainer.runtime.patches.pod_patches import (
    LEGACY,
    MODERN,
    PATCHES_PATH,
    PodPatch,
    pod_patches,
)
from kftrainer.runtime.validation.rules import Rule

STEP_ENV = "must not have envs for the dataset-initializer, model-initializer, node containers"
STEP_CONTAINERS = (
    names.STEP_DATASET_INITIALIZER,
    names.STEP_MODEL_INITIALIZER,
    names.CONTAINER_NODE,
)
STEP_CHANGED = "the runtime sets this label, and a TrainJob cannot change it"
CONTAINERS = (("initContainers", "initContainer"), ("containers", "container"))
MOST_UNKNOWN = 100  # errors that are reported; more indicate a wrong runtime

# The messages of Kubernetes, with which Kubeflow Trainer rejects the name of a manager.
DOMAIN_PREFIXED = 'must be a domain-prefixed path (such as "acme.io/foo")'
NOT_A_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
TOO_LONG = f"must be no more than {LONGEST_NAME} characters"
_PATH = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
NOT_A_PATH = f"Invalid path (regex used for validation is '{_PATH}')"
_IS_PATH = re.compile(_PATH)


def both_fields_errors(job: TrainJob) -> Iterator[FieldError]:
    """Yield an error if overrides are set under both field names."""
    if job.spec.pod_template_overrides and job.spec.pod_spec_overrides:
        detail = f"is the old name of {MODERN}: only one can be set"
        yield forbidden(f"spec.{LEGACY}", detail, rule=Rule.SCHEMA)


def manager_errors(job: TrainJob) -> Iterator[FieldError]:
    """Yield errors for managers of runtime patches whose name has no domain."""
    for index, patch in enumerate(job.spec.runtime_patches or ()):
        for value, detail in _manager_problems(patch.manager):
            where = f"{PATCHES_PATH}[{index}].manager"
            yield invalid(where, value, detail, rule=Rule.PATCH_MANAGER)


def _manager_problems(manager: str) -> Iterator[tuple[str, str]]:
    domain, _, path = manager.partition("/")
    if not (domain and path):
        yield manager, DOMAIN_PREFIXED
        return
    if len(domain) > LONGEST_NAME:
        yield domain, TOO_LONG
    if not SUBDOMAIN.fullmatch(domain):
        yield domain, NOT_A_SUBDOMAIN
    if not _IS_PATH.fullmatch(path):
        yield path, NOT_A_PATH


def step_env_errors(job: TrainJob) -> Iterator[FieldError]:
    """Yield errors for variables of step containers, which the TrainJob sets in other fields."""
    for patch in pod_patches(job):
        for index, container in enumerate(patch.spec.get("containers") or ()):
            if container.get("name") in STEP_CONTAINERS and container.get("env"):
                where = f"{patch.spec_path}.containers[{index}].env"
                env = [each.get("name") for each in container["env"]]
                yield invalid(where, env, STEP_ENV, rule=patch.kind.step_env_rule)


def target_errors(job: TrainJob, template: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield errors for jobs and containers that the runtime does not have, and for changed steps.

    `template` is the template of the runtime, into which nothing was merged yet.
    """
    return islice(_target_errors(job, template), MOST_UNKNOWN)


def _target_errors(job: TrainJob, template: Mapping[str, Any]) -> Iterator[FieldError]:
    jobs = {each["name"]: _KnownJob(each) for each in template["replicatedJobs"]}
    for patch in pod_patches(job):
        named = {field: _first_indices(patch, field) for field, _ in CONTAINERS}
        for target, index in _first_targets(patch).items():
            if target in jobs:
                yield from _unknown_containers(patch, named, jobs[target])
                yield from _changed_step(patch, jobs[target])
            else:
                where, rule = patch.job_path.format(index), patch.kind.unknown_job_rule
                yield invalid(where, target, patch.kind.unknown_job, rule=rule)


class _KnownJob:
    """The step of a job and the names of its containers by list, computed once."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        pod = job["template"]["spec"]["template"]["spec"]
        self.name = job["name"]
        self.containers = {
            field: frozenset(each["name"] for each in pod.get(field) or ())
            for field, _ in CONTAINERS
        }
        labels = (job["template"].get("metadata") or {}).get("labels") or {}
        self.step = labels.get(names.LABEL_ANCESTOR_STEP)


def _first_targets(patch: PodPatch) -> dict[str, int]:
    """Return the jobs that the patch names, with the index of the first mention."""
    targets: dict[str, int] = {}
    for index, target in enumerate(patch.jobs):
        targets.setdefault(target, index)
    return targets


def _first_indices(patch: PodPatch, field: str) -> dict[Any, int]:
    """Return the containers that the patch changes, with the index of the first mention."""
    indices: dict[Any, int] = {}
    for index, container in enumerate(patch.spec.get(field) or ()):
        indices.setdefault(container.get("name"), index)
    return indices


def _unknown_containers(
    patch: PodPatch, named: Mapping[str, Mapping[Any, int]], known: _KnownJob
) -> Iterator[FieldError]:
    for field, noun in CONTAINERS:
        # Usually all names are known, which a set comparison finds quickly.
        if named[field].keys() <= known.containers[field]:
            continue
        for name, index in named[field].items():
            if name not in known.containers[field]:
                where = f"{patch.spec_path}.{field}[{index}].name"
                detail = f"must not have {noun} that doesn't exist in the runtime job {known.name}"
                yield invalid(where, name, detail, rule=patch.kind.unknown_container_rule)


def _changed_step(patch: PodPatch, known: _KnownJob) -> Iterator[FieldError]:
    label = names.LABEL_ANCESTOR_STEP
    labels = patch.job_metadata.get("labels") or {}
    if label in labels and labels[label] != known.step:
        where = f"{patch.job_metadata_path}.labels[{label}]"
        yield invalid(where, labels[label], STEP_CHANGED, rule=Rule.PATCH_STEP)
