"""What to answer about an object that is not what it says it is."""

from collections.abc import Mapping, Sequence
from typing import Any

from kftrainer.api.limits import exceeded
from kftrainer.kube.field import Findings
from kftrainer.kube.model import Problem
from kftrainer.kube.resource import Manifest
from kftrainer.machinery.admission import AdmissionRequest, Verdict, refused, verdict_of
from kftrainer.runtime.changes import NOT_NEW
from kftrainer.runtime.rule_names import Rule

MOST_PROBLEMS = 10  # that an answer tells
BAD_REQUEST = 400


def misshapen(kind: str, problems: Sequence[Problem], before: Sequence[Problem]) -> Verdict:
    """Refuse it, without any value of it; unless all of that was so before the update.

    It may have been stored when the schema was another: whoever suspends or labels it then is not
    to blame, and the API server does not blame him either.
    """
    if set(problems) <= set(before):
        told = [NOT_NEW.format(each) for each in problems[:MOST_PROBLEMS]]
        return Verdict(allowed=True, warnings=told)
    told = [*map(str, problems[:MOST_PROBLEMS])]
    if (more := len(problems) - len(told)) > 0:
        told.append(f"and {more} more")
    message = f"not a {kind}: {'; '.join(told)}"
    return refused(BAD_REQUEST, "BadRequest", message, rule=Rule.SCHEMA)


def too_large(request: AdmissionRequest) -> Verdict | None:
    """Reject an object that exceeds a limit before anything else is done with it.

    An update of an object that exceeded the same limit before is admitted with a warning, so that
    it can be suspended and labelled; the controller does not plan it.
    """
    new, old = request.object, request.old_object
    error = None if new is None else exceeded(new, rule=Rule.TOO_LARGE)
    if error is None:
        return None
    before = None if old is None else exceeded(old)
    if before is not None and (before.path, before.fault) == (error.path, error.fault):
        return Verdict(allowed=True, warnings=[NOT_NEW.format(error)])
    return verdict_of(Findings([error]), request)


def metadata_of(manifest: Manifest) -> Mapping[str, Any]:
    """The metadata, if it is what it should be."""
    metadata = manifest.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
