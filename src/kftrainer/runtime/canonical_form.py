"""The form in which TrainJobs are stored, so that Go clients can write them back unchanged. Pure.

A Go client reads a TrainJob into structs and writes all of it back, as Kueue does. It writes
quantities as strings in their canonical form, and omits empty lists and maps. A TrainJob that is
stored in this form stays the same; any other would appear to be changed.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kftrainer.api.limits import exceeded
from kftrainer.kube.objects.meta import rfc3339
from kftrainer.kube.objects.nested import nested_field
from kftrainer.kube.objects.quantity import QuantityError
from kftrainer.kube.objects.resource import Manifest
from kftrainer.runtime.resources.quantities import canonical_quantity

PATCHES: Final = "runtimePatches"
# The names below are those of the CRD, at any depth of the spec.
QUANTITIES: Final = frozenset({("emptyDir", "sizeLimit"), ("resourceFieldRef", "divisor")})
QUANTITY_MAPS: Final = frozenset({"limits", "requests"})
# Maps with keys of the user. Go omits empty ones.
MAPS: Final = QUANTITY_MAPS | {
    "annotations",
    "labels",
    "matchLabels",
    "nodeSelector",
    "options",
    "userAnnotations",
    "volumeAttributes",
}
# Lists that Go writes even if they are empty: required ones, and `sources` of projected volumes.
WRITTEN_IF_EMPTY: Final = frozenset({"monitors", "nodeSelectorTerms", "sources", "targetJobs"})
# Lists that Go omits if they are empty.
LISTS: Final = frozenset(
    {
        "accessModes",
        "add",
        "args",
        "claims",
        "command",
        "containers",
        "drop",
        "env",
        "finalizers",
        "imagePullSecrets",
        "initContainers",
        "items",
        "matchExpressions",
        "matchFields",
        "matchLabelKeys",
        "mismatchLabelKeys",
        "namespaces",
        "podSpecOverrides",
        "podTemplateOverrides",
        "portals",
        "preferredDuringSchedulingIgnoredDuringExecution",
        "replicatedJobs",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "resourceClaims",
        "resourceClaimsPerNode",
        PATCHES,
        "schedulingGates",
        "supplementalGroups",
        "sysctls",
        "targetWWNs",
        "tolerations",
        "values",
        "volumeMounts",
        "volumes",
        "wwids",
    }
)
IDENTITIES: Final = ("manager", "name")  # fields by which items of lists are compared


class _Missing:
    """Type of MISSING."""


MISSING: Final = _Missing()


def canonical_train_job(old: Manifest | None, new: Manifest, now: datetime) -> Manifest:
    """Return the TrainJob as it should be stored; the same object if nothing has to be changed.

    Quantities become strings in Go's canonical form, empty lists and maps that Go omits are
    removed, and entries of `runtimePatches` get the time of their last change. Nothing else is
    added or removed: an empty object stays. In an update, what is the same as in the old TrainJob
    stays as it is stored, in whatever form. Invalid values are not changed: validation reports
    them. The spec may have any structure. Idempotent for the same `now`. Shares unchanged parts.

    TrainJobs that exceed a limit are not changed, nor those that would exceed one afterwards.
    """
    spec, old_spec = new.get("spec"), nested_field(old, "spec")
    if type(spec) is not dict or spec == old_spec or _is_large(new) or _is_large(old):
        return new
    form = _object(spec, old_spec, "spec")
    form = _with_times(form, old_spec, rfc3339(now))
    if form is spec:
        return new
    result = {**new, "spec": form}
    return new if _is_large(result) else result


def _is_large(manifest: Manifest | None) -> bool:
    return manifest is not None and exceeded(manifest) is not None


def _object(value: dict[str, Any], old: object, name: str) -> dict[str, Any]:
    """Return the fields of an object in canonical form; the same object if they already are."""
    before = old if type(old) is dict else {}
    changed: dict[str, Any] = {}
    for field, each in value.items():
        form: object
        kind = type(each)
        if kind is dict:
            form = _map_or_object(each, before.get(field), field)
        elif kind is list:
            form = _list(each, before.get(field), field)
        elif (name, field) in QUANTITIES:
            form = _quantity(each, before.get(field))
        else:
            continue
        if form is not each:
            changed[field] = form
    return _with(value, changed)


def _map_or_object(value: dict[str, Any], old: object, field: str) -> dict[str, Any] | _Missing:
    if field not in MAPS:
        return _object(value, old, field)
    if not value:
        return value if old == {} else MISSING
    return _amounts(value, old) if field in QUANTITY_MAPS else value


def _amounts(value: dict[str, Any], old: object) -> dict[str, Any]:
    before = old if type(old) is dict else {}
    forms = {name: _quantity(each, before.get(name)) for name, each in value.items()}
    return _with(value, {name: form for name, form in forms.items() if form is not value[name]})


def _list(value: list[Any], old: object, field: str) -> list[Any] | _Missing:
    if not value:
        return MISSING if field in LISTS and old != [] else value
    counterpart = _counterparts(old)
    forms = [
        _object(each, counterpart(index, each), "") if type(each) is dict else each
        for index, each in enumerate(value)
    ]
    is_same = all(form is each for form, each in zip(forms, value, strict=True))
    return value if is_same else forms


def _quantity(value: object, old: object) -> object:
    """Return a quantity in canonical form, unless it is invalid or the same as before."""
    kind = type(value)
    if kind not in (str, int, float) or (type(old) is kind and old == value):
        return value
    try:
        form = canonical_quantity(value)
    except QuantityError:
        return value
    return value if form == value else form


def _with(value: dict[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with these fields changed, in the same order; MISSING removes a field."""
    if not changed:
        return value
    merged = {**value, **changed}
    return {field: each for field, each in merged.items() if each is not MISSING}


def _counterparts(old: object) -> Callable[[int, dict[str, Any]], object]:
    """Return a function that finds the old item for an item of a new list, or None.

    Items with a name are compared with the first one of that name, others by position.
    """
    items: Sequence[Any] = old if type(old) is list else ()
    named: dict[str, Any] = {}
    for each in items:
        if (identity := _identity(each)) is not None:
            named.setdefault(identity, each)

    def find(index: int, item: dict[str, Any]) -> object:
        identity = _identity(item)
        if identity is not None:
            return named.get(identity)
        return items[index] if index < len(items) else None

    return find


def _identity(item: object) -> str | None:
    if type(item) is dict:
        for field in IDENTITIES:
            value = item.get(field)
            if type(value) is str:
                return value
    return None


def _with_times(spec: dict[str, Any], old: object, now: str) -> dict[str, Any]:
    """Return the spec with the times at which its patches last changed."""
    patches = spec.get(PATCHES)
    if type(patches) is not list:
        return spec
    old_patches = _by_manager(nested_field(old, PATCHES))
    stamped = [
        _stamped(each, old_patches.get(each["manager"]), now) if _is_patch(each) else each
        for each in patches
    ]
    if all(each is before for each, before in zip(stamped, patches, strict=True)):
        return spec
    return {**spec, PATCHES: stamped}


def _by_manager(patches: object) -> Mapping[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in patches if type(patches) is list else ():
        if _is_patch(each):
            found.setdefault(each["manager"], each)
    return found


def _is_patch(value: object) -> bool:
    return type(value) is dict and type(value.get("manager")) is str


def _stamped(patch: dict[str, Any], old: dict[str, Any] | None, now: str) -> dict[str, Any]:
    """Return a patch with its time, as Kubeflow Trainer sets it.

    A time given by the client is only used for a manager without an old patch.
    """
    given = patch.get("time")
    if old is None:
        time = now if given is None else given
    elif _content(patch) == _content(old):
        time = old.get("time")
    else:
        time = now
    if time == given:
        return patch
    return _with(patch, {"time": MISSING if time is None else time})


def _content(patch: dict[str, Any]) -> Any:
    """Return what decides whether two patches are equal: all but the time, whatever the form."""
    content = {field: each for field, each in patch.items() if field != "time"}
    return _comparable(_object(content, None, ""), "")


def _comparable(value: Any, name: str) -> Any:
    """Return a value without what Go adds: a divisor of zero."""
    match value:
        case dict():
            is_zero = name == "resourceFieldRef" and value.get("divisor") == "0"
            return {
                field: _comparable(each, field)
                for field, each in value.items()
                if not (is_zero and field == "divisor")
            }
        case list():
            return [_comparable(each, "") for each in value]
        case _:
            return type(value), value  # true and 1 are equal in Python
