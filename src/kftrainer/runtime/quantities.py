"""Quantities in pods, written as the API server writes them."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kftrainer.kube.field import FieldError, invalid
from kftrainer.kube.quantity import Quantity, QuantityError
from kftrainer.runtime.manifests import thaw

CONTAINER_LISTS = ("initContainers", "containers")
HALVES = ("limits", "requests")


def rewrite_quantities(spec: dict[str, Any], path: str) -> Iterator[FieldError]:
    """Write the pod's quantities in their canonical form, in place; tells those that are none.

    JobSet's schema keeps them as they come, and `1000m` would differ from `1` for ever.
    """
    for field in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(field) or ()):
            yield from _rewrite_resources(container, f"{path}.{field}[{index}]")
    yield from _rewrite_resources(spec, path)
    yield from _rewrite(spec.get("overhead"), f"{path}.overhead")
    for index, volume in enumerate(spec.get("volumes") or ()):
        if (empty := volume.get("emptyDir")) and "sizeLimit" in empty:
            yield from _rewrite(empty, f"{path}.volumes[{index}].emptyDir", only="sizeLimit")


def canonical_resources(
    resources: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], list[FieldError]]:
    """A copy of a container's resources with canonical quantities, and what is none in them."""
    copy = thaw(resources)
    errors = [error for half in HALVES for error in _rewrite(copy.get(half), f"{path}.{half}")]
    return copy, errors


def _rewrite_resources(holder: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    resources = holder.get("resources")
    if resources:
        for half in HALVES:
            yield from _rewrite(resources.get(half), f"{path}.resources.{half}")


def _rewrite(
    amounts: dict[str, Any] | None, path: str, only: str | None = None
) -> Iterator[FieldError]:
    for name in (only,) if only else tuple(amounts or ()):
        assert amounts is not None  # noqa: S101  it has names
        try:
            amounts[name] = _canonical(amounts[name])
        except (QuantityError, TypeError) as error:
            where = f"{path}.{name}" if only else f"{path}[{name}]"
            yield invalid(where, amounts[name], str(error))


@lru_cache(maxsize=4096, typed=True)
def _canonical(value: object) -> str:
    return str(Quantity.parse(value))
