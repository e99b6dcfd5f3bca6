"""Rewrites the quantities of pods in the API server's canonical form."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kftrainer.api.limits import QUANTITY_LENGTH
from kftrainer.kube.objects.field_errors import FieldError, invalid
from kftrainer.kube.objects.quantity import ZERO, Quantity, QuantityError
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.validation.rules import Rule

CONTAINER_LISTS = ("initContainers", "containers")
HALVES = ("limits", "requests")
MEASURED_VOLUMES = ("emptyDir", "ephemeral", "downwardAPI")  # volume types with quantities
LARGEST = Quantity.parse(2**63 - 1)  # the documented maximum of quantities


def rewrite_quantities(spec: dict[str, Any], path: str) -> Iterator[FieldError]:
    """Rewrite the pod's quantities in canonical form, in place; yield errors for invalid ones.

    JobSet's schema stores quantities unchanged, so `1000m` and `1` would always differ.
    """
    for field in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(field) or ()):
            yield from _rewrite_container(container, f"{path}.{field}[{index}]")
    yield from _rewrite_resources(spec, path)
    yield from _rewrite(spec.get("overhead"), f"{path}.overhead")
    for index, volume in enumerate(spec.get("volumes") or ()):
        if not volume.keys().isdisjoint(MEASURED_VOLUMES):
            yield from _rewrite_volume(volume, f"{path}.volumes[{index}]")


def canonical_resources(
    resources: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], list[FieldError]]:
    """Return a copy of a container's resources with canonical quantities, and the errors."""
    copy = thaw(resources)
    errors = [error for half in HALVES for error in _rewrite(copy.get(half), f"{path}.{half}")]
    return copy, errors


def _rewrite_container(container: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _rewrite_resources(container, path)
    for index, variable in enumerate(container.get("env") or ()):
        source = variable.get("valueFrom")
        if source and (resource := source.get("resourceFieldRef")):
            where = f"{path}.env[{index}].valueFrom.resourceFieldRef"
            yield from _rewrite_one(resource, "divisor", where)


def _rewrite_volume(volume: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if empty_dir := volume.get("emptyDir"):
        yield from _rewrite_one(empty_dir, "sizeLimit", f"{path}.emptyDir")
    if ephemeral := volume.get("ephemeral"):
        claim = ephemeral.get("volumeClaimTemplate") or {}
        claimed = f"{path}.ephemeral.volumeClaimTemplate.spec"
        yield from _rewrite_resources(claim.get("spec") or {}, claimed)
    if downward := volume.get("downwardAPI"):
        for index, item in enumerate(downward.get("items") or ()):
            where = f"{path}.downwardAPI.items[{index}].resourceFieldRef"
            yield from _rewrite_one(item.get("resourceFieldRef"), "divisor", where)


def _rewrite_resources(holder: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    resources = holder.get("resources")
    if resources:
        for half in HALVES:
            if amounts := resources.get(half):
                yield from _rewrite(amounts, f"{path}.resources.{half}")


def _rewrite(amounts: dict[str, Any] | None, path: str) -> Iterator[FieldError]:
    found = amounts or {}
    for name, value in found.items():
        try:
            found[name] = canonical_quantity(value)
        except (QuantityError, TypeError) as error:
            yield _invalid(f"{path}[{name}]", value, error)


def _rewrite_one(holder: dict[str, Any] | None, field: str, path: str) -> Iterator[FieldError]:
    if holder and field in holder:
        try:
            holder[field] = canonical_quantity(holder[field])
        except (QuantityError, TypeError) as error:
            yield _invalid(f"{path}.{field}", holder[field], error)


def _invalid(path: str, value: object, error: Exception) -> FieldError:
    return invalid(path, value, str(error), rule=Rule.QUANTITY_NEGATIVE)


@lru_cache(maxsize=4096, typed=True)
def canonical_quantity(value: object) -> str:
    """Return a quantity as Go writes it; raise QuantityError if a rule rejects it.

    Raises TypeError for an object or a list.
    """
    if isinstance(value, str) and len(value) > QUANTITY_LENGTH:
        raise QuantityError(f"must have at most {QUANTITY_LENGTH} characters")
    quantity = Quantity.parse(value)
    if quantity < ZERO:
        raise QuantityError("must be at least 0")
    if quantity > LARGEST:
        raise QuantityError(f"must be at most {LARGEST}")
    return str(quantity)
