"""What JobSet's own webhook would refuse about a JobSet, so that it can be told earlier.

As of JobSet v0.12 with its feature gates as they are shipped. That a claim's name is taken by a
PersistentVolumeClaim of another spec is left to JobSet: one must ask the cluster to know.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.runtime.jobset_rules.claims import claim_refusals
from kftrainer.runtime.jobset_rules.jobs import job_refusals
from kftrainer.runtime.jobset_rules.policies import policy_refusals
from kftrainer.runtime.jobset_rules.refusal import Refusal
from kftrainer.runtime.jobset_rules.shape import shape_of

__all__ = ["Refusal", "refusals"]


def refusals(spec: Mapping[str, Any], *, name: str | None) -> Iterator[Refusal]:
    """Each reason to refuse a JobSet of this spec and name.

    None for the name says that the spec is a runtime's template: names and numbers of pods come
    with a TrainJob, and what depends on them is not told.
    """
    shape = shape_of(spec, name)
    yield from job_refusals(shape)
    yield from policy_refusals(shape)
    yield from claim_refusals(shape)
