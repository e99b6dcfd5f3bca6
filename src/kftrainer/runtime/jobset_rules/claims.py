"""What JobSet refuses about the claims that it makes for a JobSet's pods."""

from collections.abc import Iterator

from kftrainer.runtime.jobset_rules.naming import size, subdomain_faults
from kftrainer.runtime.jobset_rules.refusal import Refusal
from kftrainer.runtime.jobset_rules.shape import Claim, Shape

LONGEST_CLAIM = 63


def claim_refusals(shape: Shape) -> Iterator[Refusal]:
    """The templates of claims, each beside the pods that are to mount it."""
    seen: set[str] = set()
    for claim in shape.claims:
        if claim.name in seen:
            yield Refusal(claim.path, "names must be unique for VolumeClaimPolicies template")
        seen.add(claim.name)
        for fault in subdomain_faults(claim.name):
            yield Refusal(claim.path, fault)
        if shape.name is not None and size(f"{claim.name}-{shape.name}") > LONGEST_CLAIM:
            yield Refusal(claim.path, "VolumeClaimPolicies template name is too long")
        yield from _use_refusals(shape, claim)


def _use_refusals(shape: Shape, claim: Claim) -> Iterator[Refusal]:
    for job in shape.jobs:
        for index, volume in enumerate(job.volumes):
            if volume == claim.name:
                path = f"{job.path}.template.spec.template.spec.volumes[{index}].name"
                text = f"volume name conflicts with VolumeClaimPolicy template name: {volume}"
                yield Refusal(path, text)
    if not any(claim.name in job.mounts for job in shape.jobs):
        text = (
            f"replicatedJob containers don't have a matching volumeMount: {claim.name} from "
            "VolumeClaimPolicies"
        )
        yield Refusal("spec.replicatedJobs", text)
