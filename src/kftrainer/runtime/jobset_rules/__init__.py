"""Rules of JobSet's own webhook, so that rejections can be reported earlier.

They are those of JobSet v0.12 with its default feature gates. A conflict with an existing
PersistentVolumeClaim is not checked, because that needs a request to the API server.
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
    """Yield each reason for which JobSet rejects this spec and name.

    Pass None as the name of a runtime's template: the rules that depend on the TrainJob's name or
    the number of pods are then skipped.
    """
    shape = shape_of(spec, name)
    yield from job_refusals(shape)
    yield from policy_refusals(shape)
    yield from claim_refusals(shape)
