"""Resource claims of a TrainJob (dynamic resource allocation), and the devices that they request.

`spec.trainer.resourceClaimsPerNode` names ResourceClaimTemplates. Kubernetes creates a claim from
each for every pod, and the pod starts when the devices are allocated.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.api.resources import RESOURCE_CLAIM_TEMPLATES
from kftrainer.api.trainjob import ResourceClaim, TrainJob
from kftrainer.kube.objects.field_errors import (
    ErrorType,
    FieldError,
    forbidden,
    invalid,
)
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.kube.schema.metadata import SUBDOMAIN, SUBDOMAIN_WORDS
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import ClaimTemplateNotFoundError, NotInstalledError, PlanningError
from kftrainer.runtime.validation.rules import Rule

CLAIMS_PATH = "spec.trainer.resourceClaimsPerNode"
CLAIMS_IN_RESOURCES = "spec.trainer.resourcesPerNode.claims"
UNKNOWN = "is not the name of a resource claim of the pods: the API server would reject them"
REMEDY = "it needs Kubernetes 1.34 or later: enable resource.k8s.io/v1 or grant access"
# Kubeflow Trainer only looks at the name of a request, which its author chooses. The DeviceClasses
# are those of the drivers.
_NAME = "gpu"
_CLASS = re.compile(r"(gpu|mig|tpu|npu|gaudi|neuron)\..+")


@dataclass(frozen=True, slots=True)
class ClaimedDevices:
    """The number of accelerators that the resource claims of one node request.

    `error` is why pods cannot start yet.
    """

    count: int = 0
    is_known: bool = True  # otherwise the number is 0
    error: PlanningError | None = None


NO_CLAIMS = ClaimedDevices()


def claims_of(job: TrainJob) -> Sequence[ResourceClaim]:
    """Return the resource claims of each node."""
    trainer = job.spec.trainer
    return (trainer and trainer.resource_claims_per_node) or ()


def claim_errors(job: TrainJob) -> Iterator[FieldError]:
    """Yield errors in the TrainJob's resource claims that do not depend on other objects."""
    claims = claims_of(job)
    trainer, rule = job.spec.trainer, Rule.RESOURCE_CLAIMS
    if claims and trainer is not None and (trainer.resources_per_node or {}).get("claims"):
        detail = f"cannot be set together with {CLAIMS_PATH}"
        yield forbidden(CLAIMS_IN_RESOURCES, detail, rule=rule)
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        path = f"{CLAIMS_PATH}[{index}]"
        if claim.name in seen:
            yield FieldError(f"{path}.name", ErrorType.DUPLICATE, value=claim.name, rule=rule)
        seen.add(claim.name)
        template = claim.resource_claim_template_name
        if not SUBDOMAIN.fullmatch(template):
            where = f"{path}.resourceClaimTemplateName"
            yield invalid(where, template, SUBDOMAIN_WORDS, rule=rule)


def taken_claim_errors(
    claims: Sequence[ResourceClaim],
    pod: Mapping[str, Any],
    job_name: str,
    patched: Mapping[str, str],
) -> Iterator[FieldError]:
    """Yield errors for claims whose name a claim in the job's pod template already has.

    `patched` are the paths of the patches that set claims of the job, by the names of the claims.
    """
    taken = _names(pod.get("resourceClaims"))
    for index, claim in enumerate(claims):
        if claim.name in taken:
            source = patched.get(claim.name, "the runtime")
            detail = f"is already the name of a resource claim of the job {job_name} of {source}"
            where = f"{CLAIMS_PATH}[{index}].name"
            yield invalid(where, claim.name, detail, rule=Rule.RESOURCE_CLAIMS)


def missing_claim_errors(
    claims: Sequence[Mapping[str, Any]],
    path: str,
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
) -> Iterator[FieldError]:
    """Yield errors for a container's claims that its pod does not have.

    `claims`, at this path, are those that the TrainJob sets. A later patch may have replaced them.
    """
    known = _names(pod.get("resourceClaims"))
    used = _names((container.get("resources") or {}).get("claims"))
    for index, claim in enumerate(claims):
        name = claim.get("name")
        if name in used and name not in known:
            yield invalid(f"{path}[{index}].name", name, UNKNOWN, rule=Rule.RESOURCE_CLAIMS)


def _names(claims: Sequence[Mapping[str, Any]] | None) -> frozenset[Any]:
    return frozenset(each.get("name") for each in claims or ())


def requested_devices(job: TrainJob, existing: ClusterReader) -> ClaimedDevices:
    """Count the accelerators in the ResourceClaimTemplates; the error is about the first missing.

    Each template is created in the TrainJob's namespace by its users, and can be created later.
    """
    count = 0
    for index, claim in enumerate(claims_of(job)):
        name = claim.resource_claim_template_name
        key = ObjectKey(job.metadata.namespace or "", name)
        template = existing.get(RESOURCE_CLAIM_TEMPLATES, key)
        if template is None:
            error = _missing(key, f"{CLAIMS_PATH}[{index}]", existing)
            return ClaimedDevices(is_known=False, error=error)
        count += devices_in(template)
    return ClaimedDevices(count)


def _missing(key: ObjectKey, path: str, existing: ClusterReader) -> PlanningError:
    if not existing.is_complete(RESOURCE_CLAIM_TEMPLATES):
        return NotInstalledError(RESOURCE_CLAIM_TEMPLATES, REMEDY)
    where = f"{path}.resourceClaimTemplateName"
    error = FieldError(where, ErrorType.NOT_FOUND, value=key.name, rule=Rule.RESOURCE_CLAIMS)
    message = (
        f"ResourceClaimTemplate {key.name} is not found in namespace {key.namespace}: "
        f"pods cannot start without it ({path})"
    )
    return ClaimTemplateNotFoundError(message, [error])


def devices_in(template: Manifest) -> int:
    """Return the number of accelerators that a claim of this template requests, at least.

    - Of a request with alternatives (`firstAvailable`), the smallest number counts: no node has
      more processes than devices, whichever alternative is allocated.
    - A request for all matching devices of a node (`allocationMode: All`) counts as one device.
    - Administrative access allocates no device.
    """
    devices = ((template.get("spec") or {}).get("spec") or {}).get("devices") or {}
    return sum(_devices_requested(each) for each in devices.get("requests") or ())


def _devices_requested(request: Mapping[str, Any]) -> int:
    name = request["name"]
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or ()
    if exactly is not None:
        return _amount(exactly, name)
    return min((_amount(each, name, each["name"]) for each in alternatives), default=0)


def _amount(request: Mapping[str, Any], *request_names: str) -> int:
    """Return the number of accelerators of one alternative."""
    is_accelerator = any(_NAME in name.lower() for name in request_names) or _CLASS.fullmatch(
        request.get("deviceClassName") or ""
    )
    if not is_accelerator or request.get("adminAccess"):
        return 0
    count: int = request.get("count") or 1  # not set with `allocationMode: All`
    return count
