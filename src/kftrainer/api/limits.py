"""Limits on TrainJobs and runtimes, which bound the cost of admitting and planning one.

The CRDs, the webhook, the manager and the command line enforce the same limits. An object that was
stored before a limit existed, or that bypassed admission, is checked before it is decoded.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import orjson

from kftrainer.api import names
from kftrainer.kube.objects.field_errors import ErrorType, FieldError
from kftrainer.kube.objects.model import InvalidDocumentError, Problem
from kftrainer.kube.objects.resource import Manifest

T = TypeVar("T")

KIB: Final = 1024

# Limits of the part that clients write: everything but the status and system metadata. In bytes of
# compact JSON.
OBJECT_BYTES: Final = 256 * KIB
# Fields of objects and items of lists, in total.
OBJECT_VALUES: Final = 3_000
# Resource quantities, each of which is parsed, compared and rewritten.
OBJECT_QUANTITIES: Final = 500
# Nesting of objects and lists.
OBJECT_DEPTH: Final = 64

# What a queue adds to its own runtime patch does not count up to these limits: otherwise a TrainJob
# that nearly reaches a limit would be admitted by the queue, but could not be resumed. It is enough
# for the settings of 16 jobs.
QUEUE_BYTES: Final = 32 * KIB
QUEUE_VALUES: Final = 600

# Limits of the status and of the metadata except labels and annotations. The API server and
# controllers add to it after admission, so it does not count above. The status of STATUS_ROWS jobs
# fits.
SYSTEM_BYTES: Final = 512 * KIB
SYSTEM_VALUES: Final = 10_000

REPLICATED_JOBS: Final = 100
STATUS_ROWS: Final = 1000  # above REPLICATED_JOBS, for jobs created under higher limits
OVERRIDES: Final = 100  # also the maximum number of target jobs of each override
RUNTIME_PATCHES: Final = 16
CONTAINERS: Final = 64  # of each kind in a pod
VOLUMES: Final = 128
ENV_VARS: Final = 512
WORDS: Final = 1024  # items of a command or its arguments
FEW, MANY = 64, 256
OTHER_ITEMS: Final = 1024  # items of other lists and maps, in the CRDs only

QUANTITY_LENGTH: Final = 64
# Other strings, in the CRDs only. It is the maximum length of an argument or environment variable
# in Linux.
TEXT_LENGTH: Final = 128 * KIB
ANNOTATION_LENGTH: Final = 256 * KIB  # the API server's limit for all annotations together

# Maximum number of items of lists, by field name at any level.
MAX_ITEMS: Final[Mapping[str, int]] = {
    "args": WORDS,
    "claims": FEW,
    "command": WORDS,
    "containers": CONTAINERS,
    "dependsOn": REPLICATED_JOBS,
    "env": ENV_VARS,
    "envFrom": MANY,
    "ephemeralContainers": CONTAINERS,
    "hostAliases": MANY,
    "imagePullSecrets": FEW,
    "initContainers": CONTAINERS,
    "jobsStatus": STATUS_ROWS,
    "podSpecOverrides": OVERRIDES,
    "podTemplateOverrides": OVERRIDES,
    "ports": MANY,
    "readinessGates": FEW,
    "replicatedJobs": REPLICATED_JOBS,
    "resourceClaims": FEW,
    "runtimePatches": RUNTIME_PATCHES,
    "schedulingGates": FEW,
    "sources": FEW,
    "targetJobs": OVERRIDES,
    "tolerations": MANY,
    "topologySpreadConstraints": FEW,
    "volumeDevices": VOLUMES,
    "volumeMounts": VOLUMES,
    "volumes": VOLUMES,
}
# Maps whose values are quantities, and objects that contain a quantity.
QUANTITY_MAPS: Final = frozenset({"limits", "overhead", "requests"})
QUANTITY_HOLDERS: Final = frozenset({"emptyDir", "resourceFieldRef"})
# Maximum number of entries of maps, by field name.
MAX_PROPERTIES: Final[Mapping[str, int]] = {
    "annotations": MANY,
    "labels": MANY,
    "limits": FEW,
    "nodeSelector": FEW,
    "overhead": FEW,
    "requests": FEW,
}

LIMITED: Final = MAX_ITEMS.keys() | MAX_PROPERTIES.keys()
WITH_QUANTITIES: Final = QUANTITY_MAPS | QUANTITY_HOLDERS
NESTED: Final = frozenset({dict, list})

ROOT: Final = "<root>"
# Metadata that clients write.
CLIENT_METADATA: Final = frozenset({"annotations", "labels"})
IGNORED_METADATA: Final = frozenset({"managedFields"})
ADVICE: Final = "put code and data into an image, a ConfigMap or a volume"
IN_SYSTEM_PART: Final = " in status and metadata, without labels and annotations"


class LimitProblem(Problem):
    """A limit that a document exceeds."""


class LimitExceededError(InvalidDocumentError):
    """The document exceeds a limit and was not decoded."""

    def __init__(self, error: FieldError) -> None:
        message = str(error).removeprefix(f"{error.path}: ")
        super().__init__([LimitProblem(error.path, message)])
        self.error = error


def within_limits(decode: Callable[[Manifest], T]) -> Callable[[Manifest], T]:
    """Wrap a decoder so that it raises LimitExceededError before it decodes a large object."""

    def checked(manifest: Manifest) -> T:
        if (error := exceeded(manifest)) is not None:
            raise LimitExceededError(error)
        return decode(manifest)

    return checked


def size_of(manifest: Manifest) -> int:
    """Return the size that is limited: bytes of compact JSON of the part that clients write."""
    return _size(_parts(manifest)[0])


def _size(part: Manifest) -> int:
    try:
        return len(orjson.dumps(part))
    except TypeError:  # an integer from a file that is too large for JSON
        return len(json.dumps(part, separators=(",", ":"), default=str))


def _parts(manifest: Manifest) -> tuple[Manifest, Manifest]:
    """Return the part that clients write, and the part that changes after admission."""
    written: dict[str, Any] = dict(manifest)
    system: dict[str, Any] = {}
    if "status" in written:
        system["status"] = written.pop("status")
    metadata = written.get("metadata")
    if isinstance(metadata, Mapping):
        written["metadata"] = {k: v for k, v in metadata.items() if k in CLIENT_METADATA}
        others = metadata.keys() - CLIENT_METADATA - IGNORED_METADATA
        system["metadata"] = {key: metadata[key] for key in others}
    return written, system


def values_in(value: Any) -> int:
    """Return the total number of fields and items in a value."""
    level: list[Any] = [value]
    values = 0
    while level:
        values += sum(map(len, level))
        level = [
            each
            for part in level
            for each in (part if type(part) is list else part.values())
            if type(each) in NESTED and each
        ]
    return values


def exceeded(manifest: Manifest, *, rule: str = "") -> FieldError | None:
    """Return an error for the first limit that the object exceeds.

    Encodes the object at most twice; apart from that, the cost is bounded for objects beyond the
    limits.
    """
    error = _exceeded(manifest, rule)
    if error is None or (rest := _without_queue(manifest)) is None:
        return error
    return _exceeded(rest, rule)


def _exceeded(manifest: Manifest, rule: str) -> FieldError | None:
    written, system = _parts(manifest)
    return (
        _too_many(written, OBJECT_VALUES, "", rule)
        or _too_many(system, SYSTEM_VALUES, IN_SYSTEM_PART, rule)
        or _too_long(written, OBJECT_BYTES, "", rule)
        or _too_long(system, SYSTEM_BYTES, IN_SYSTEM_PART, rule)
    )


def _without_queue(manifest: Manifest) -> Manifest | None:
    """Return the TrainJob with an empty runtime patch of the queue.

    Returns None if there is no such patch, or if it is larger than a queue needs.
    """
    spec = manifest.get("spec")
    patches = spec.get("runtimePatches") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(patches, list):
        return None
    for index, patch in enumerate(patches[:RUNTIME_PATCHES]):
        if isinstance(patch, Mapping) and patch.get("manager") == names.QUEUE_MANAGER:
            is_large = _too_many(patch, QUEUE_VALUES, "", "") or _too_long(
                patch, QUEUE_BYTES, "", ""
            )
            if is_large:
                return None
            emptied = [*patches[:index], {"manager": patch["manager"]}, *patches[index + 1 :]]
            return {**manifest, "spec": {**spec, "runtimePatches": emptied}}
    return None


def _too_long(part: Manifest, most: int, where: str, rule: str) -> FieldError | None:
    size = _size(part)
    if size <= most:
        return None
    advice = "" if where else f": {ADVICE}"
    detail = f"may not be more than {most} bytes as JSON{where}, and is {size}{advice}"
    return FieldError(ROOT, ErrorType.TOO_LONG, detail, rule=rule)


def _too_many(manifest: Manifest, most: int, where: str, rule: str) -> FieldError | None:
    """Return an error if the numbers of fields, items or quantities exceed their limits."""
    level: list[_Part] = [("", manifest)]
    values = quantities = 0
    for _ in range(OBJECT_DEPTH):
        values += sum([len(part) for _, part in level])
        if values > most:
            detail = f"may not have more than {most} fields and items{where}"
            return FieldError(ROOT, ErrorType.TOO_LONG, detail, rule=rule)
        for name, part in level:
            if name in LIMITED and len(part) > _most(name, part):
                return _too_many_in(manifest, name, part, rule)
            if name in WITH_QUANTITIES:
                quantities += 1 if name in QUANTITY_HOLDERS else len(part)
        if quantities > OBJECT_QUANTITIES:
            detail = f"may not have more than {OBJECT_QUANTITIES} resource quantities"
            return FieldError(ROOT, ErrorType.TOO_LONG, detail, rule=rule)
        level = _inner(level)
        if not level:
            return None
    detail = f"may not be nested deeper than {OBJECT_DEPTH} levels"
    return FieldError(ROOT, ErrorType.TOO_LONG, detail, rule=rule)


_Part = tuple[str, Any]  # a list or an object, and the name of its field


def _inner(level: list[_Part]) -> list[_Part]:
    """Return the non-empty lists and objects one level below."""
    found: list[_Part] = []
    for _, part in level:
        if type(part) is list:
            found += [("", each) for each in part if type(each) in NESTED and each]
        else:
            found += [(name, each) for name, each in part.items() if type(each) in NESTED and each]
    return found


def _most(name: str, part: Any) -> int:
    limits = MAX_ITEMS if type(part) is list else MAX_PROPERTIES
    return limits.get(name, OBJECT_VALUES)


def _too_many_in(manifest: Manifest, name: str, part: Any, rule: str) -> FieldError:
    path = next((path for path, each in _walk(manifest, "", OBJECT_DEPTH) if each is part), name)
    noun = "items" if type(part) is list else "entries"
    detail = f"must have at most {_most(name, part)} {noun}"
    return FieldError(path, ErrorType.TOO_MANY, detail, len(part), rule=rule)


def _walk(part: Any, path: str, deepest: int) -> Iterator[tuple[str, Any]]:
    """Yield the lists and objects with their paths."""
    yield path, part
    if type(part) is list:
        inner = ((f"{path}[{index}]", each) for index, each in enumerate(part))
    else:
        inner = ((f"{path}.{name}" if path else name, each) for name, each in part.items())
    for where, each in inner:
        if deepest and type(each) in NESTED:
            yield from _walk(each, where, deepest - 1)
