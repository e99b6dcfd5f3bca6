"""Whether JobSet will take the names that it makes from a TrainJob's and its runtime's."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.field import FieldError, invalid
from kftrainer.runtime.info import Info
from kftrainer.runtime.podset import PodSet

LONGEST_LABEL = 63  # of host names, which names of pods become, and of values of labels
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_WORDS = (
    "must be lower-case letters, digits and -, start with a letter and end with a letter or digit"
)
POD_SUFFIX = "-abcde"  # what the Job controller adds


def is_label(text: object) -> bool:
    """Whether it can be part of a host name, and starts with a letter (RFC 1035)."""
    return isinstance(text, str) and len(text) <= LONGEST_LABEL and bool(LABEL.fullmatch(text))


def template_name_errors(template: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Names in a runtime's template that JobSet refuses, whatever the TrainJob is called."""
    for index, job in enumerate(template["replicatedJobs"]):
        if not is_label(job["name"]):
            yield invalid(f"{path}.replicatedJobs[{index}].name", job["name"], LABEL_WORDS)
    subdomain = (template.get("network") or {}).get("subdomain")
    if subdomain and not is_label(subdomain):
        yield invalid(f"{path}.network.subdomain", subdomain, LABEL_WORDS)


def name_errors(info: Info, job: TrainJob) -> Iterator[FieldError]:
    """Why the TrainJob's name does not do: it is no label, or too long for what is made from it."""
    name = job.metadata.name
    if not LABEL.fullmatch(name):
        yield invalid("metadata.name", name, LABEL_WORDS)
        return
    room, whose = min((*map(_room_of_pods, info.pod_sets), *_room_of_others(info)))
    if len(name) > room:
        detail = (
            f"must be no more than {room} characters: {whose} is named after it, and such names "
            f"must be no more than {LONGEST_LABEL} characters"
        )
        yield invalid("metadata.name", name, detail)


def _room_of_pods(pod_set: PodSet) -> tuple[int, str]:
    """How long a TrainJob's name can be, for the longest name among these pods to fit."""
    rest = f"-{pod_set.name}-{pod_set.replicas - 1}-{pod_set.count - 1}{POD_SUFFIX}"
    return LONGEST_LABEL - len(rest), f"each pod of the job {pod_set.name}"


def _room_of_others(info: Info) -> Iterator[tuple[int, str]]:
    """The same for the coordinator's address, which becomes a label, and for claims."""
    if coordinator := info.template.get("coordinator"):
        pod = f"{coordinator.get('jobIndex', 0)}-{coordinator.get('podIndex', 0)}"
        rest = f"-{coordinator.get('replicatedJob', '')}-{pod}."
        subdomain = (info.template.get("network") or {}).get("subdomain")
        left = LONGEST_LABEL - len(rest)
        # Without a subdomain the address has the name twice.
        yield (left - len(subdomain) if subdomain else left // 2), "the coordinator's address"
    for policy in info.template.get("volumeClaimPolicies") or ():
        for template in policy.get("templates") or ():
            claim = (template.get("metadata") or {}).get("name") or ""
            yield LONGEST_LABEL - len(f"{claim}-"), f"each claim {claim}"
