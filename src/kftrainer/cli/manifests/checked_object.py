"""Objects from documents, validated as the API server would, with the problems found in them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kftrainer.api.resources import TRAIN_JOBS, AnyResource
from kftrainer.api.schema.creation import creation_errors
from kftrainer.api.schema.offline import KINDS, stored
from kftrainer.cli.manifests.documents import NO_ITEMS, Document
from kftrainer.cli.manifests.identification import (
    head_problems,
    is_list_of,
    located,
    metadata_problems,
)
from kftrainer.cli.manifests.problems import (
    DocumentProblem,
    ObjectCounts,
    Severity,
    message_of,
    split_warning,
)
from kftrainer.cli.manifests.structure import shape_problems
from kftrainer.kube.objects.field_errors import ErrorType, FieldError, ValidationResult, required
from kftrainer.kube.objects.model import InvalidDocumentError, Problem
from kftrainer.kube.objects.resource import Manifest, ObjectKey, key_of
from kftrainer.kube.schema.metadata import generated_name
from kftrainer.runtime.canonical_form import canonical_train_job

Known = Mapping[tuple[str, str], AnyResource]  # by apiVersion and kind
IS_REQUIRED = "is required"
NO_TIME = datetime.fromtimestamp(0, UTC)  # of patches in files, which only the cluster dates


@dataclass(slots=True)
class CheckedObject:
    """An object and all problems found in it."""

    document: Document
    resource: AnyResource | None = None  # None if the kind is unknown
    stored: Mapping[str, Any] | None = None  # as the API server would; None if invalid
    model: Any = None  # for our own kinds: the typed object
    problems: dict[DocumentProblem, None] = field(default_factory=dict)  # an ordered set

    @property
    def key(self) -> ObjectKey | None:
        """The object's key if its metadata is valid, even if other fields are not."""
        metadata = self.document.content.get("metadata")
        if self.resource is None or any(metadata_problems(metadata)):
            return None
        return key_of({"metadata": located(metadata or {}, self.resource)})

    @property
    def is_ours(self) -> bool:
        """Whether it is a TrainJob or a runtime."""
        return self.resource is not None and self.resource is KINDS.get(self.resource.kind)

    @property
    def is_invalid(self) -> bool:
        """Whether it has errors."""
        return any(problem.severity == "error" for problem in self.problems)

    def add_errors(self, *errors: FieldError) -> None:
        """Add errors, each once."""
        for error in errors:
            self._add(error.path, error.type.value, message_of(error), error.rule)

    def add_warnings(self, *warnings: str) -> None:
        """Add warnings, each once; a warning may begin with a path."""
        for warning in warnings:
            path, message = split_warning(warning)
            self._add(path, None, message)

    def add_result(self, result: ValidationResult) -> None:
        """Add all errors and warnings of a validation."""
        self.add_errors(*result.errors)
        self.add_warnings(*result.warnings)

    def _add(self, path: str, error_type: str | None, message: str, rule: str = "") -> None:
        place, position = self.document.place, self.document.position
        line = position.nearest(path).line if position else place.line
        severity: Severity = "warning" if error_type is None else "error"
        problem = DocumentProblem(
            place.file, line, path, error_type, message, severity, str(rule) or None
        )
        self.problems[problem] = None


def check_document(document: Document, known: Known) -> CheckedObject:
    """Return the object of a document, with the problems of the document alone."""
    head = (document.content.get("apiVersion"), document.content.get("kind"))
    problems = [*head_problems(*head)]
    if not problems and is_list_of(known, *head):
        problems = [Problem("items", NO_ITEMS)]
    if problems:
        checked = CheckedObject(document)
        checked.add_errors(*_errors(problems))
        return checked
    checked = CheckedObject(document, known.get((str(head[0]), str(head[1]))))
    if checked.is_ours:
        _check_ours(checked)
    else:
        _check_other(checked)
    return checked


def _check_ours(checked: CheckedObject) -> None:
    """Validate as the API server would; admission follows later."""
    assert checked.resource is not None  # noqa: S101  set for our own kinds
    document = checked.document.content
    checked.add_errors(*creation_errors(document, _mutated))
    if checked.is_invalid:
        return
    metadata = document["metadata"]
    if not checked.resource.namespaced and metadata.get("namespace"):
        checked.add_warnings(
            f"metadata.namespace: ignored: a {checked.resource.kind} has no namespace"
        )
    name = metadata.get("name") or generated_name(metadata["generateName"])
    whole = {**document, "metadata": {**located(metadata, checked.resource), "name": name}}
    content = _mutated(stored(whole).document)
    try:
        checked.model = checked.resource.decode(content)
    except InvalidDocumentError as error:
        checked.add_errors(*_errors(error.problems))
    else:
        checked.stored = content


def _mutated(manifest: Manifest) -> Manifest:
    """Return the object as the mutating webhook would change it; times do not affect planning."""
    if manifest.get("kind") != TRAIN_JOBS.kind:
        return manifest
    return canonical_train_job(None, manifest, NO_TIME)


def _check_other(checked: CheckedObject) -> None:
    """Check an object of another kind: only the parts that planning reads must be valid."""
    content = dict(checked.document.content)
    problems = [*metadata_problems(content.get("metadata"))]
    if checked.resource is not None and not problems:
        content["metadata"] = located(content["metadata"], checked.resource)
        problems += shape_problems(content, checked.resource)
    if checked.resource is not None:
        # Nothing can refer to an object without a name.
        nameless = [
            each
            for each in problems
            if each.path in ("metadata", "metadata.name") and each.message.startswith(IS_REQUIRED)
        ]
        checked.add_errors(*_errors(each for each in problems if each not in nameless))
    if not problems:
        checked.stored = content


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


def report_duplicates(objects: Collection[CheckedObject], *, as_error: bool) -> None:
    """Report objects that occur twice.

    This is a warning, because both can be applied one after the other. With `as_error` it is an
    error, also for objects of other kinds, because planning must use one of them.
    """
    seen: dict[tuple[AnyResource, ObjectKey], CheckedObject] = {}
    for checked in objects:
        if checked.resource is None or checked.key is None or not (checked.is_ours or as_error):
            continue
        first = seen.setdefault((checked.resource, checked.key), checked)
        if first is checked:
            continue
        message = f"the {checked.resource.kind} in {first.document.place} has the same name"
        if as_error:
            checked.add_errors(
                FieldError("metadata.name", ErrorType.DUPLICATE, message, checked.key.name)
            )
        else:
            checked.add_warnings(f"metadata.name: {message}")


def require_names(objects: Iterable[CheckedObject]) -> None:
    """Reject objects whose name only the API server can generate."""
    for checked in objects:
        if checked.model is not None and not checked.document.content["metadata"].get("name"):
            checked.add_errors(required("metadata.name", "only the API server can generate one"))


def count_objects(objects: Iterable[CheckedObject]) -> ObjectCounts:
    """Count the objects that were checked, used as context, and skipped."""
    number, context, skipped = 0, Counter[str](), Counter[str]()
    for checked in objects:
        kind = str(checked.document.content.get("kind"))
        if checked.is_ours or checked.problems:
            number += 1
        else:
            (skipped if checked.resource is None else context)[kind] += 1
    return ObjectCounts(number, context, skipped)
