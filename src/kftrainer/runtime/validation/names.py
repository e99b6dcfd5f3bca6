"""Validates the names that JobSet derives from those of a TrainJob and its runtime."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, invalid
from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.runtime.info import Info
from kftrainer.runtime.validation.rules import Rule

LONGEST_LABEL = 63  # characters of a DNS label, such as a pod's host name, and of label values
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_WORDS = (
    "must be lower-case letters, digits and -, start with a letter and end with a letter or digit"
)
POD_SUFFIX = "-abcde"  # same length as the suffix that the Job controller adds
TEMPLATE = "spec.template.spec"


class NameLimit(NamedTuple):
    """The maximum length of a TrainJob's name, given one name that is derived from it."""

    characters: int
    subject: str
    path: str  # path of the runtime's part of the derived name

    def reason(self, after: str) -> str:
        """Return the reason for the limit; `after` is what the name is derived from."""
        return (
            f"{self.subject} is named after {after}, and such names must be no more than "
            f"{LONGEST_LABEL} characters"
        )

    @property
    def no_name_fits(self) -> str:
        """The error message for a runtime that leaves no room for a TrainJob's name."""
        return f"leaves no room for the name of a TrainJob: {self.reason('both')}"


def is_label(text: object) -> bool:
    """Whether the text is a DNS label that starts with a letter (RFC 1035)."""
    return isinstance(text, str) and len(text) <= LONGEST_LABEL and bool(LABEL.fullmatch(text))


def template_name_errors(template: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Yield errors for names in a runtime's template that JobSet rejects for every TrainJob."""
    for index, job in enumerate(template["replicatedJobs"]):
        if not is_label(job["name"]):
            where = f"{path}.replicatedJobs[{index}].name"
            yield invalid(where, job["name"], LABEL_WORDS, rule=Rule.RUNTIME_NAMES)
    subdomain = (template.get("network") or {}).get("subdomain")
    if subdomain and not is_label(subdomain):
        where = f"{path}.network.subdomain"
        yield invalid(where, subdomain, LABEL_WORDS, rule=Rule.RUNTIME_NAMES)


def name_errors(info: Info, job: TrainJob, counts: Sequence[int]) -> Iterator[FieldError]:
    """Yield an error if the TrainJob's name is not a DNS label or too long for derived names.

    `counts` is the number of pods in each replica, job by job.
    """
    name = job.metadata.name
    if not LABEL.fullmatch(name):
        yield invalid("metadata.name", name, LABEL_WORDS, rule=Rule.SCHEMA)
        return
    replicas = (each.replicas for each in info.pod_sets)
    limit = name_limit(info.template, [*zip(replicas, counts, strict=True)])
    if limit.characters < 1:  # no name of a TrainJob could fix that
        runtime = f"{info.runtime.kind} {info.runtime.metadata.name}"
        detail = f"{limit.path} of {runtime} {limit.no_name_fits}"
        reference = job.spec.runtime_ref.dump()
        yield invalid("spec.runtimeRef", reference, detail, rule=Rule.NAME_TOO_LONG)
    elif len(name) > limit.characters:
        detail = f"must be no more than {limit.characters} characters: {limit.reason('it')}"
        yield invalid("metadata.name", name, detail, rule=Rule.NAME_TOO_LONG)


def name_limit(template: Mapping[str, Any], sizes: Sequence[tuple[int, int]]) -> NameLimit:
    """Return the smallest NameLimit; `sizes` are the replicas of each job and the pods in each."""
    pods = map(_limit_of_pods, range(len(sizes)), template["replicatedJobs"], sizes)
    return min((*pods, *_limits_of_others(template)))


def _limit_of_pods(index: int, job: Mapping[str, Any], size: tuple[int, int]) -> NameLimit:
    """Return the limit due to the longest name among the pods of a job."""
    name, replicas, count = job["name"], *size
    rest = f"-{name}-{max(0, replicas - 1)}-{max(0, count - 1)}{POD_SUFFIX}"
    path = f"{TEMPLATE}.replicatedJobs[{index}].name"
    return NameLimit(LONGEST_LABEL - len(rest), f"each pod of the job {name}", path)


def _limits_of_others(spec: Mapping[str, Any]) -> Iterator[NameLimit]:
    """Yield the limits due to the coordinator's address, which becomes a label, and to claims."""
    if coordinator := mapping_or_empty(spec.get("coordinator")):
        pod = f"{coordinator.get('jobIndex', 0)}-{coordinator.get('podIndex', 0)}"
        rest = f"-{coordinator.get('replicatedJob', '')}-{pod}."
        subdomain = mapping_or_empty(spec.get("network")).get("subdomain")
        left = LONGEST_LABEL - len(rest)
        subject = "the coordinator's address"
        if subdomain:
            yield NameLimit(left - len(subdomain), subject, f"{TEMPLATE}.network.subdomain")
        else:  # the address contains the name twice
            yield NameLimit(left // 2, subject, f"{TEMPLATE}.coordinator")
    for index, policy in enumerate(spec.get("volumeClaimPolicies") or ()):
        for position, template in enumerate(mapping_or_empty(policy).get("templates") or ()):
            claim = mapping_or_empty(mapping_or_empty(template).get("metadata")).get("name") or ""
            path = f"{TEMPLATE}.volumeClaimPolicies[{index}].templates[{position}].metadata.name"
            yield NameLimit(LONGEST_LABEL - len(f"{claim}-"), f"each claim {claim}", path)
