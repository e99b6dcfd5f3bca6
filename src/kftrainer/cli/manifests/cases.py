"""Objects from documents, each with the problems found in it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kftrainer.api.resources import AnyResource
from kftrainer.api.schema.creation import creation_errors
from kftrainer.api.schema.defaults import KINDS, stored
from kftrainer.cli.manifests.documents import NO_ITEMS, Document
from kftrainer.cli.manifests.identification import (
    head_problems,
    is_list_of,
    located,
    metadata_problems,
)
from kftrainer.cli.manifests.problems import (
    DocumentProblem,
    Severity,
    Tally,
    message_of,
    split_warning,
)
from kftrainer.cli.manifests.structure import shape_problems
from kftrainer.kube.objects.field_errors import ErrorType, FieldError, ValidationResult, required
from kftrainer.kube.objects.model import InvalidDocumentError, Problem
from kftrainer.kube.objects.resource import ObjectKey, key_of
from kftrainer.kube.schema.metadata import generated_name

Known = Mapping[tuple[str, str], AnyResource]  # by apiVersion and kind
IS_REQUIRED = "is required"


@dataclass(slots=True)
class Case:
    """An object and all problems found in it."""

    document: Document
    resource: AnyResource | None = None  # None if the kind is unknown
    stored: Mapping[str, Any] | None = None  # as the API server would; None if invalid
    model: Any = None  # for our own kinds: the typed object
    remarks: dict[DocumentProblem, None] = field(default_factory=dict)  # an ordered set

    @property
    def key(self) -> ObjectKey | None:
        """The object's key, if it can be determined, whatever else is invalid."""
        metadata = self.document.content.get("metadata")
        if self.resource is None or any(metadata_problems(metadata)):
            return None
        return key_of({"metadata": located(metadata or {}, self.resource)})

    @property
    def is_ours(self) -> bool:
        """Whether it is a TrainJob or a runtime."""
        return self.resource is not None and self.resource is KINDS.get(self.resource.kind)

    @property
    def is_refused(self) -> bool:
        """Whether it has errors."""
        return any(remark.severity == "error" for remark in self.remarks)

    def refuse(self, *errors: FieldError) -> None:
        """Add errors, each once."""
        for error in errors:
            self._say(error.path, error.fault.value, message_of(error), error.rule)

    def warn(self, *warnings: str) -> None:
        """Add warnings, each once; a warning may begin with a path."""
        for warning in warnings:
            path, message = split_warning(warning)
            self._say(path, None, message)

    def take(self, findings: ValidationResult) -> None:
        """Add all errors and warnings of a validation."""
        self.refuse(*findings.errors)
        self.warn(*findings.warnings)

    def _say(self, path: str, fault: str | None, message: str, rule: str = "") -> None:
        place, spot = self.document.place, self.document.spot
        line = spot.nearest(path).line if spot else place.line
        severity: Severity = "warning" if fault is None else "error"
        remark = DocumentProblem(
            place.file, line, path, fault, message, severity, str(rule) or None
        )
        self.remarks[remark] = None


def case_of(document: Document, known: Known) -> Case:
    """Return the case of a document, with the problems of the document alone."""
    head = (document.content.get("apiVersion"), document.content.get("kind"))
    problems = [*head_problems(*head)]
    if not problems and is_list_of(known, *head):
        problems = [Problem("items", NO_ITEMS)]
    if problems:
        case = Case(document)
        case.refuse(*_errors(problems))
        return case
    case = Case(document, known.get((str(head[0]), str(head[1]))))
    if case.is_ours:
        _read_ours(case)
    else:
        _read_other(case)
    return case


def _read_ours(case: Case) -> None:
    """Validate as the API server would; admission follows later."""
    assert case.resource is not None  # noqa: S101  set for our own kinds
    document = case.document.content
    case.refuse(*creation_errors(document))
    if case.is_refused:
        return
    metadata = document["metadata"]
    if not case.resource.namespaced and metadata.get("namespace"):
        case.warn(f"metadata.namespace: is left out: a {case.resource.kind} is in no namespace")
    name = metadata.get("name") or generated_name(metadata["generateName"])
    whole = {**document, "metadata": {**located(metadata, case.resource), "name": name}}
    content = stored(whole).document
    try:
        case.model = case.resource.decode(content)
    except InvalidDocumentError as error:
        case.refuse(*_errors(error.problems))
    else:
        case.stored = content


def _read_other(case: Case) -> None:
    """Check an object of another kind: only the parts that planning reads must be valid."""
    content = dict(case.document.content)
    problems = [*metadata_problems(content.get("metadata"))]
    if case.resource is not None and not problems:
        content["metadata"] = located(content["metadata"], case.resource)
        problems += shape_problems(content, case.resource)
    if case.resource is not None:
        # Nothing can refer to an object without a name.
        nameless = [
            each
            for each in problems
            if each.path in ("metadata", "metadata.name") and each.message.startswith(IS_REQUIRED)
        ]
        case.refuse(*_errors(each for each in problems if each not in nameless))
    if not problems:
        case.stored = content


def _errors(problems: Iterable[Problem]) -> Iterable[FieldError]:
    """Convert problems to the API server's field errors."""
    for problem in problems:
        if problem.message == IS_REQUIRED:
            yield required(problem.path)
        elif not problem.path:  # the kind does not exist
            yield FieldError("kind", ErrorType.NOT_SUPPORTED, problem.message)
        elif problem.message.startswith("must be "):
            yield FieldError(problem.path, ErrorType.TYPE_INVALID, problem.message)
        else:
            yield FieldError(problem.path, ErrorType.INVALID, problem.message)


def mark_twins(cases: Collection[Case], *, as_error: bool) -> None:
    """Report objects that occur twice.

    Only one of them can exist in the end. This is a warning, because both can be applied; with
    `as_error` it is an error, also for objects of other kinds, because one has to be chosen.
    """
    seen: dict[tuple[AnyResource, ObjectKey], Case] = {}
    for case in cases:
        if case.resource is None or case.key is None or not (case.is_ours or as_error):
            continue
        first = seen.setdefault((case.resource, case.key), case)
        if first is case:
            continue
        message = f"is also that of the {case.resource.kind} in {first.document.place}"
        if as_error:
            case.refuse(FieldError("metadata.name", ErrorType.DUPLICATE, message, case.key.name))
        else:
            case.warn(f"metadata.name: {message}")


def require_names(cases: Iterable[Case]) -> None:
    """Reject objects whose name only the API server can generate."""
    for case in cases:
        if case.model is not None and not case.document.content["metadata"].get("name"):
            case.refuse(required("metadata.name", "only the API server can generate one"))


def tally_of(cases: Iterable[Case]) -> Tally:
    """Count the objects that were checked, used as context, and skipped."""
    checked, context, skipped = 0, Counter[str](), Counter[str]()
    for case in cases:
        kind = str(case.document.content.get("kind"))
        if case.is_ours or case.remarks:
            checked += 1
        else:
            (skipped if case.resource is None else context)[kind] += 1
    return Tally(checked, context, skipped)
