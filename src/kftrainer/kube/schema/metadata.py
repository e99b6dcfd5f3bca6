"""Validation of object metadata, as the API server does it for every kind."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.kube.objects.field_errors import ErrorType, FieldError, forbidden, invalid, required
from kftrainer.kube.schema.defaulting import Schema
from kftrainer.kube.schema.structure import below

LONGEST_NAME = 253
LONGEST_LABEL = 63
LONGEST_GENERATED = 63  # characters of a generated name, including the suffix
RANDOM_SUFFIX = 5  # length of the suffix that the API server adds to generateName
MOST_ANNOTATIONS = 256 * 1024  # bytes of all keys and values

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_LABEL = re.compile(_LABEL)
SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
WORD = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
SUBDOMAIN_WORDS = (
    "must be lower-case letters, digits, - and ., and each part between dots must start and end "
    "with a letter or digit"
)
LABEL_WORDS = "must be lower-case letters, digits and -, and start and end with a letter or digit"
WORD_WORDS = "must be letters, digits, -, _ and ., and start and end with a letter or digit"

_TEXT: Schema = {"type": "string", "nullable": True}
_WHOLE: Schema = {"type": "integer", "nullable": True}
_TRUTH: Schema = {"type": "boolean", "nullable": True}
_TIME: Schema = {**_TEXT, "format": "date-time"}
_TEXTS: Schema = {"type": "object", "nullable": True, "additionalProperties": _TEXT}
_OWNER = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("apiVersion", "kind", "name", "uid"), _TEXT),
        **dict.fromkeys(("controller", "blockOwnerDeletion"), _TRUTH),
    },
}
_ENTRY = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("manager", "operation", "apiVersion", "fieldsType", "subresource"), _TEXT),
        "time": _TIME,
        "fieldsV1": {"x-kubernetes-preserve-unknown-fields": True},
    },
}
# As Go decodes it: null and missing fields are empty.
METADATA: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(
            ("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"), _TEXT
        ),
        **dict.fromkeys(("generation", "deletionGracePeriodSeconds"), _WHOLE),
        **dict.fromkeys(("creationTimestamp", "deletionTimestamp"), _TIME),
        **dict.fromkeys(("labels", "annotations"), _TEXTS),
        "finalizers": {"type": "array", "nullable": True, "items": _TEXT},
        "ownerReferences": {"type": "array", "nullable": True, "items": _OWNER},
        "managedFields": {"type": "array", "nullable": True, "items": _ENTRY},
    },
}


def generated_name(prefix: str) -> str:
    """Return a name as the API server would generate it from generateName."""
    return prefix[: LONGEST_GENERATED - RANDOM_SUFFIX] + "x" * RANDOM_SUFFIX


def metadata_errors(metadata: Mapping[str, Any], *, namespaced: bool) -> Iterator[FieldError]:
    """Yield the errors of metadata whose fields have the right types."""
    yield from _name_errors(metadata)
    namespace = metadata.get("namespace")
    if namespace and namespaced:
        yield from _label_errors(namespace, "metadata.namespace")
    for key, value in (metadata.get("labels") or {}).items():
        yield from _key_errors(key, "metadata.labels")
        yield from _value_errors(value or "", below("metadata.labels", key))
    yield from _annotation_errors(metadata.get("annotations") or {})
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        yield from _key_errors(finalizer or "", f"metadata.finalizers[{index}]")
    yield from _owner_errors(metadata.get("ownerReferences") or ())


def key_problem(key: str) -> str | None:
    """Return why this is not a valid label key: a name with an optional DNS prefix."""
    prefix, slash, word = key.rpartition("/")
    if slash and not (SUBDOMAIN.fullmatch(prefix) and len(prefix) <= LONGEST_NAME):
        return f"the part before the / {SUBDOMAIN_WORDS}"
    if not WORD.fullmatch(word) or len(word) > LONGEST_LABEL:
        subject = "the part after the / " if slash else ""
        return f"{subject}{WORD_WORDS}, with at most {LONGEST_LABEL} characters"
    return None


def _name_errors(metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if prefix:
        # The prefix may end with a hyphen, because a suffix follows.
        middle = f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        errors = [*_subdomain_errors(middle, "metadata.generateName", prefix)]
        yield from errors
        if not errors and not name:
            yield from _subdomain_errors(generated_name(prefix), "metadata.generateName", prefix)
    if name:
        yield from _subdomain_errors(name, "metadata.name", name)
    elif not prefix:
        yield required("metadata.name", "name or generateName is required")


def _subdomain_errors(text: str, path: str, value: str) -> Iterator[FieldError]:
    if len(text) > LONGEST_NAME:
        yield invalid(path, value, f"must be no more than {LONGEST_NAME} characters")
    if not SUBDOMAIN.fullmatch(text):
        yield invalid(path, value, SUBDOMAIN_WORDS)


def _label_errors(text: str, path: str) -> Iterator[FieldError]:
    if len(text) > LONGEST_LABEL:
        yield invalid(path, text, f"must be no more than {LONGEST_LABEL} characters")
    if not DNS_LABEL.fullmatch(text):
        yield invalid(path, text, LABEL_WORDS)


def _key_errors(key: str, path: str) -> Iterator[FieldError]:
    if (problem := key_problem(key)) is not None:
        yield invalid(path, key, problem)


def _value_errors(value: str, path: str) -> Iterator[FieldError]:
    if value and (not WORD.fullmatch(value) or len(value) > LONGEST_LABEL):
        detail = f"{WORD_WORDS}, with at most {LONGEST_LABEL} characters, or be empty"
        yield invalid(path, value, detail)


def _annotation_errors(annotations: Mapping[str, str | None]) -> Iterator[FieldError]:
    size = 0
    for key, value in annotations.items():
        size += len(key.encode()) + len((value or "").encode())
        # Annotation keys may have capital letters in the prefix.
        if (problem := key_problem(key.lower())) is not None:
            yield invalid("metadata.annotations", key, problem)
    if size > MOST_ANNOTATIONS:
        detail = f"must have no more than {MOST_ANNOTATIONS} bytes altogether, and has {size}"
        yield FieldError("metadata.annotations", ErrorType.TOO_LONG, detail)


def _owner_errors(owners: Any) -> Iterator[FieldError]:
    in_charge = 0
    for index, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{index}]"
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield invalid(f"{path}.{field}", owner.get(field, ""), "must not be empty")
        in_charge += bool(owner.get("controller"))
        if owner.get("controller") and in_charge > 1:
            yield invalid(
                f"{path}.controller",
                value=True,
                detail="only one owner reference can have controller: true",
            )
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            yield forbidden(path, "an Event cannot be an owner")
