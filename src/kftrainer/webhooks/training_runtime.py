"""Runtimes at admission: both kinds, when they are created and when their specs change."""

from collections.abc import Mapping, Sequence
from typing import Any

from kftrainer.api import names
from kftrainer.api.defaults import stored
from kftrainer.api.resources import AnyResource
from kftrainer.kube.field import Findings
from kftrainer.kube.model import InvalidDocumentError, Problem
from kftrainer.kube.resource import Manifest
from kftrainer.machinery.admission import ALLOWED, AdmissionRequest, Verdict, refused, verdict_of
from kftrainer.runtime.deprecation import deprecation
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.runtime_rules import runtime_findings

MOST_PROBLEMS = 10  # that an answer tells about an object that is none of ours


class RuntimeAdmission:
    """Answers for one kind of runtimes: TrainingRuntimes or ClusterTrainingRuntimes."""

    def __init__(self, resource: AnyResource) -> None:
        self._resource = resource

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """Whether the runtime may be written as it is.

        A change that leaves the spec alone is never refused: whatever is wrong with a runtime, our
        own finalizer must come and go, and others must be able to label it.
        """
        new, old = request.object, request.old_object
        if new is None or (old is not None and _metadata(new).get("deletionTimestamp")):
            return ALLOWED
        is_changed = old is None or old.get("spec") != new.get("spec")
        if not is_changed and _support(new) == _support(old or {}):
            return ALLOWED
        try:
            runtime = self._decoded(new)
            findings = runtime_findings(runtime) if is_changed else _remarks(runtime)
        except InvalidDocumentError as error:
            return self._undecodable(error.problems) if is_changed else ALLOWED
        except Exception:
            problems = stored({**new, "kind": self._resource.kind}).problems
            if not problems:
                raise
            return self._undecodable(problems)  # the API server would not have let it come so far
        return verdict_of(findings, request)

    def _decoded(self, manifest: Manifest) -> AnyRuntime:
        """The runtime; of which kind it is, the path of the request has said."""
        head = {"apiVersion": self._resource.api_version, "kind": self._resource.kind}
        runtime: AnyRuntime = self._resource.decode({**manifest, **head})
        return runtime

    def _undecodable(self, problems: Sequence[Problem]) -> Verdict:
        """Say which fields are wrong, and not what they hold."""
        told = "; ".join(map(str, problems[:MOST_PROBLEMS]))
        return refused(400, "BadRequest", f"this is no {self._resource.kind}: {told}")


def _remarks(runtime: AnyRuntime) -> Findings:
    """What there is to say when only the labels have changed."""
    deprecated = deprecation(runtime)
    return Findings(warnings=[] if deprecated is None else [deprecated])


def _metadata(manifest: Manifest) -> Mapping[str, Any]:
    metadata = manifest.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _support(manifest: Manifest) -> object:
    labels = _metadata(manifest).get("labels")
    return labels.get(names.LABEL_SUPPORT) if isinstance(labels, Mapping) else None
