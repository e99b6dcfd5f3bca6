"""What the documents are: TrainJobs to plan for, their runtimes, and what else is there."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kftrainer.api import names, resources
from kftrainer.api.defaults import KINDS, stored
from kftrainer.api.resources import AnyResource
from kftrainer.cli.documents import NO_ITEMS, Document, Place
from kftrainer.cli.shapes import shape_problems
from kftrainer.kube.model import InvalidDocumentError, Problem
from kftrainer.kube.resource import ObjectKey, Resource, key_of

DEFAULT_NAMESPACE = "default"
NO_UID = "00000000-0000-0000-0000-000000000000"  # of a TrainJob that has not been created
KNOWN = tuple(each for each in vars(resources).values() if isinstance(each, Resource))


@dataclass(slots=True)
class Entry:
    """An object of a kind that we know, and what is to be said about it."""

    place: Place
    resource: AnyResource
    content: dict[str, Any]
    key: ObjectKey | None = None  # which object it is, if it says so
    model: Any = None  # the object as our own type, if it can be that
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, *problems: object) -> None:
        """Add what is wrong with it, each once."""
        self.problems = list(dict.fromkeys([*self.problems, *map(str, problems)]))

    def warn(self, *warnings: object) -> None:
        """Add what its author should know."""
        self.warnings += map(str, warnings)

    def told(self, message: str) -> str:
        """The message as a line that says where to look."""
        subject = self.resource.kind if self.key is None else f"{self.resource.kind} {self.key}"
        return f"{self.place}: {subject}: {message}"


@dataclass(slots=True)
class Sorted:
    """The documents by what is done with them."""

    entries: list[Entry] = field(default_factory=list)  # in the order of the documents
    others: list[Mapping[str, Any]] = field(default_factory=list)  # of kinds that plugins may know
    problems: list[str] = field(default_factory=list)

    def of_kind(self, *kinds: AnyResource) -> Iterator[Entry]:
        """The entries of these kinds."""
        return (entry for entry in self.entries if entry.resource in kinds)


def sort(documents: Iterable[Document], more_known: Iterable[AnyResource] = ()) -> Sorted:
    """Tell the documents apart, and read our own kinds."""
    known = {(each.api_version, each.kind): each for each in (*KNOWN, *more_known)}
    found = Sorted()
    for document in documents:
        head = (document.content.get("apiVersion"), document.content.get("kind"))
        problems = [*head_problems(*head)]
        if problems:
            found.problems += [f"{document.place}: {each}" for each in problems]
        elif head in known:
            found.entries.append(_entry(document, known[head]))
        elif is_list_of(known, *head):
            found.problems.append(f"{document.place}: items: {NO_ITEMS}")
        elif not [*metadata_problems(document.content.get("metadata"))]:
            found.others.append(document.content)
    _refuse_twins(found.entries)
    return found


def head_problems(api_version: object, kind: object) -> Iterator[Problem]:
    """Why one cannot tell what an object is, or that it is none which there is."""
    for field_name, value in (("apiVersion", api_version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            yield Problem(field_name, "must be a string" if value else "is required")
            return
    if str(api_version).partition("/")[0] == names.GROUP and not (
        api_version == names.API_VERSION and kind in KINDS
    ):
        there_are = f"there are only {', '.join(KINDS)} of {names.API_VERSION}"
        yield Problem("", f"{kind} of {api_version}: {there_are}")


def is_list_of(known: Collection[tuple[str, str]], api_version: Any, kind: Any) -> bool:
    """Whether it should be a list of objects that we know; one that is would not be here."""
    return kind.endswith("List") and (api_version, kind.removesuffix("List")) in known


def _entry(document: Document, resource: AnyResource) -> Entry:
    entry = Entry(document.place, resource, dict(document.content))
    entry.refuse(*metadata_problems(entry.content.get("metadata")))
    if entry.problems:
        return entry
    entry.content["metadata"] = located(entry.content["metadata"], resource)
    entry.key = key_of(entry.content)
    if resource.kind in KINDS and resource is KINDS[resource.kind]:
        _read(entry)
    else:
        entry.refuse(*shape_problems(entry.content, resource))
    return entry


def metadata_problems(metadata: object) -> Iterator[Problem]:
    """Why one cannot tell which object it is."""
    if not isinstance(metadata, Mapping):
        yield Problem("metadata", "is required" if metadata is None else "must be an object")
        return
    if metadata.get("namespace") is not None and not isinstance(metadata["namespace"], str):
        yield Problem("metadata.namespace", "must be a string")
    name = metadata.get("name")
    if name is not None and not isinstance(name, str):
        yield Problem("metadata.name", "must be a string")
    elif not name and metadata.get("generateName"):
        yield Problem("metadata.name", "is required: only the API server can make one up")
    elif not name:
        yield Problem("metadata.name", "is required")


def located(metadata: Mapping[str, Any], resource: AnyResource) -> dict[str, Any]:
    """The metadata with what the API server knows besides: the namespace, and who it is."""
    located = {key: value for key, value in metadata.items() if key != "namespace"}
    if resource.namespaced:
        located["namespace"] = metadata.get("namespace") or DEFAULT_NAMESPACE
    if resource is resources.TRAIN_JOBS and not metadata.get("uid"):
        located["uid"] = NO_UID
    return located


def _read(entry: Entry) -> None:
    """Fill in defaults and parse; everything that is wrong is told once."""
    found = stored(entry.content)
    entry.content = found.document
    entry.warn(*(f"{path}: unknown field, which the API server drops" for path in found.unknown))
    problems: list[Problem] = []
    try:
        entry.model = entry.resource.decode(entry.content)
    except InvalidDocumentError as error:
        problems += error.problems
    seen = {problem.path for problem in problems}
    problems += [problem for problem in found.problems if problem.path not in seen]
    entry.refuse(*problems)


def _refuse_twins(entries: Iterable[Entry]) -> None:
    seen: dict[tuple[AnyResource, ObjectKey], Entry] = {}
    for entry in entries:
        if entry.key is None:
            continue
        first = seen.setdefault((entry.resource, entry.key), entry)
        if first is not entry:
            entry.refuse(f"it is also in {first.place}")
