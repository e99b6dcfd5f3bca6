"""JobSet's rules for volume claim templates."""

from collections.abc import Iterator

from kftrainer.runtime.jobset_rules.naming import size, subdomain_faults
from kftrainer.runtime.jobset_rules.refusal import Refusal
from kftrainer.runtime.jobset_rules.shape import Claim, Shape

LONGEST_CLAIM = 63


def claim_refusals(shape: Shape) -> Iterator[Refusal]:
    """Yield rejections of claim templates and of their use in pods."""
    use = _Use(shape)
    seen: set[str] = set()
    for claim in shape.claims:
        if claim.name in seen:
            yield Refusal(claim.path, "names must be unique for VolumeClaimPolicies template")
            continue  # the first one was already checked
        seen.add(claim.name)
        for fault in subdomain_faults(claim.name):
            yield Refusal(claim.path, fault)
        if shape.name is not None and size(f"{claim.name}-{shape.name}") > LONGEST_CLAIM:
            yield Refusal(claim.path, "VolumeClaimPolicies template name is too long")
        yield from use.refusals(claim)


class _Use:
    """Volumes and mounts of the pods, collected once because there may be many."""

    def __init__(self, shape: Shape) -> None:
        self._volumes: dict[str, list[str]] = {}  # paths by name
        self._mounted: set[str] = set()
        for job in shape.jobs:
            self._mounted |= job.mounts
            for index, volume in enumerate(job.volumes):
                path = f"{job.path}.template.spec.template.spec.volumes[{index}].name"
                self._volumes.setdefault(volume, []).append(path)

    def refusals(self, claim: Claim) -> Iterator[Refusal]:
        """Yield rejections of how pods use this claim."""
        text = f"volume name conflicts with VolumeClaimPolicy template name: {claim.name}"
        for path in self._volumes.get(claim.name, ()):
            yield Refusal(path, text)
        if claim.name not in self._mounted:
            text = (
                f"replicatedJob containers don't have a matching volumeMount: {claim.name} from "
                "VolumeClaimPolicies"
            )
            yield Refusal("spec.replicatedJobs", text)
