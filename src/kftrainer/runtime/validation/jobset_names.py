"""Names in a JobSet that JobSet's own webhook rejects: their form, and references to jobs. Pure.

The messages are those of JobSet 0.12. Other rules of its webhook are not repeated here: if JobSet
rejects a JobSet, the condition `Blocked` of the TrainJob has its message.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.runtime.validation.names import LABEL, LONGEST_LABEL

LONGEST_SUBDOMAIN = 253
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{_PART}(\.{_PART})*")
NOT_A_LABEL = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    f"regex used for validation is '{LABEL.pattern}')"
)
NOT_A_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', "
    f"regex used for validation is '{SUBDOMAIN.pattern}')"
)
LONG_SUBDOMAIN = f"must be no more than {LONGEST_SUBDOMAIN} characters"
LONG_GROUP = ".spec.replicatedJob[].groupName is too long, must be less than 63 characters"
FIRST_DEPENDS = "DependsOn can't be set for the first ReplicatedJob"
SAME_CLAIM = "names must be unique for VolumeClaimPolicies template"
DEFAULT_GROUP = "default"

Body = Mapping[str, Any]


class Rejection(NamedTuple):
    """A path in the JobSet, such as `spec.…`, and JobSet's message."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def jobset_rejections(spec: Body) -> Iterator[Rejection]:
    """Yield the names in the spec of a JobSet, or of a runtime's template, that JobSet rejects.

    A value of the wrong type or null counts as missing: the API server rejects or defaults it.
    """
    jobs = _objects(spec.get("replicatedJobs"))
    yield from _dependencies(jobs)
    for index, job in jobs:
        path = f"spec.replicatedJobs[{index}].groupName"
        for message in _label_errors(_text(job.get("groupName"), DEFAULT_GROUP)):
            yield Rejection(path, message)
    yield from _unknown_jobs(spec, {_text(job.get("name")) for _, job in jobs})
    yield from _claims(spec, jobs)


def _dependencies(jobs: Sequence[tuple[int, Body]]) -> Iterator[Rejection]:
    """Yield rejections of `dependsOn`: jobs can only depend on earlier jobs or themselves."""
    if jobs and isinstance(jobs[0][1].get("dependsOn"), list):
        yield Rejection(f"spec.replicatedJobs[{jobs[0][0]}].dependsOn", FIRST_DEPENDS)
    earlier: set[str] = set()
    for index, job in jobs:
        name = _text(job.get("name"))
        earlier.add(name)
        for position, dependency in _objects(job.get("dependsOn")):
            other = _text(dependency.get("name"))
            if other not in earlier:
                message = f"replicatedJob: {name} cannot depend on replicatedJob: {other}"
                path = f"spec.replicatedJobs[{index}].dependsOn[{position}].name"
                yield Rejection(path, message)


def _unknown_jobs(spec: Body, jobs: set[str]) -> Iterator[Rejection]:
    """Yield rejections of policies and a coordinator that name a job that does not exist."""
    absent = "does not appear in .spec.ReplicatedJobs"
    path = "spec.successPolicy.targetReplicatedJobs"
    targets = _texts(mapping_or_empty(spec.get("successPolicy")).get("targetReplicatedJobs"))
    for index, target in enumerate(targets):
        if target not in jobs:
            yield Rejection(f"{path}[{index}]", f"invalid replicatedJob name '{target}' {absent}")
    for number, rule in _objects(mapping_or_empty(spec.get("failurePolicy")).get("rules")):
        path = f"spec.failurePolicy.rules[{number}].targetReplicatedJobs"
        for index, target in enumerate(_texts(rule.get("targetReplicatedJobs"))):
            if target not in jobs:
                message = f"invalid replicatedJob name '{target}' in failure policy {absent}"
                yield Rejection(f"{path}[{index}]", message)
    coordinator = spec.get("coordinator")
    if isinstance(coordinator, dict):
        target = _text(coordinator.get("replicatedJob"))
        if target not in jobs:
            message = f"coordinator replicatedJob {target} does not exist"
            yield Rejection("spec.coordinator.replicatedJob", message)


def _claims(spec: Body, jobs: Sequence[tuple[int, Body]]) -> Iterator[Rejection]:
    """Yield rejections of claim templates, and of volumes that have the name of one."""
    claims: set[str] = set()
    for number, policy in _objects(spec.get("volumeClaimPolicies")):
        for index, template in _objects(policy.get("templates")):
            path = f"spec.volumeClaimPolicies[{number}].templates[{index}].metadata.name"
            name = _text(mapping_or_empty(template.get("metadata")).get("name"))
            if name in claims:
                yield Rejection(path, SAME_CLAIM)
                continue
            claims.add(name)
            for message in _subdomain_errors(name):
                yield Rejection(path, message)
    for number, job in jobs if claims else ():
        job_spec = mapping_or_empty(mapping_or_empty(job.get("template")).get("spec"))
        pod = mapping_or_empty(mapping_or_empty(job_spec.get("template")).get("spec"))
        for index, volume in _objects(pod.get("volumes")):
            if (name := _text(volume.get("name"))) in claims:
                path = f"spec.replicatedJobs[{number}].template.spec.template.spec.volumes[{index}]"
                message = f"volume name conflicts with VolumeClaimPolicy template name: {name}"
                yield Rejection(f"{path}.name", message)


def _label_errors(text: str) -> Iterator[str]:
    """Yield why the text is not a DNS label (RFC 1035)."""
    if _bytes(text) > LONGEST_LABEL:
        yield LONG_GROUP
    if not LABEL.fullmatch(text):
        yield NOT_A_LABEL


def _subdomain_errors(text: str) -> Iterator[str]:
    """Yield why the text is not a DNS subdomain (RFC 1123)."""
    if _bytes(text) > LONGEST_SUBDOMAIN:
        yield LONG_SUBDOMAIN
    if not SUBDOMAIN.fullmatch(text):
        yield NOT_A_SUBDOMAIN


def _bytes(text: str) -> int:
    """Return the length in bytes, as Go's `len` does."""
    return len(text.encode(errors="surrogatepass"))


def _objects(value: object) -> Sequence[tuple[int, Body]]:
    """Return the objects in a list, with their indices."""
    if not isinstance(value, list):
        return ()
    return [(index, each) for index, each in enumerate(value) if isinstance(each, dict)]


def _text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) else default


def _texts(value: object) -> Sequence[str]:
    return [each for each in (value if isinstance(value, list) else ()) if isinstance(each, str)]
