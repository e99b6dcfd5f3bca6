"""Warnings about overrides that have no effect."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from kftrainer.api.limits import values_in
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.patches.merge import merge_into_copies
from kftrainer.runtime.patches.pod_patches import PodPatch, override_patches
from kftrainer.runtime.resources.quantities import rewrite_quantities

NO_CHANGE = "{} has no effect: the pods of its jobs already have these values"
REPLACED = "{} has no effect: later overrides replace all of its values"
# More overrides than this are rare, and comparing them would take long.
MOST_MERGED, MOST_COMPARED = 64, 8
MOST_WORK = 512 * 1024  # bytes of pods and overrides to process; beyond, there is no warning
MOST_VALUES = 500  # fields and items of all overrides


def ineffective_overrides(runtime: AnyRuntime, job: TrainJob) -> Iterator[str]:
    """Yield a warning for each override without which all pods would be the same."""
    listed = override_patches(job)
    if not 0 < len(listed) <= MOST_MERGED:
        return
    if _have_many_values(listed):
        return
    template = _template(runtime)
    work = _work(template, listed)
    if work > MOST_WORK:
        return
    before, changing = _pods(template), []
    for override in listed:
        _apply(template, [override])
        after = _pods(template)
        if after == before:
            yield NO_CHANGE.format(override.path)
        else:
            changing.append(override)
        before = after
    if 1 < len(changing) <= MOST_COMPARED and work * len(changing) <= MOST_WORK:
        yield from _replaced(runtime, changing, before)


def _have_many_values(listed: Sequence[PodPatch]) -> bool:
    """Whether the overrides have more than MOST_VALUES fields; stops counting there."""
    values = 0
    for override in listed:
        values += values_in(override.spec)
        if values > MOST_VALUES:
            return True
    return False


def _replaced(runtime: AnyRuntime, listed: Sequence[PodPatch], result: list[Any]) -> Iterator[str]:
    """Yield a warning for each override whose values later overrides replace."""
    for index, override in enumerate(listed[:-1]):
        template = _template(runtime)
        _apply(template, [*listed[:index], *listed[index + 1 :]])
        if _pods(template) == result:
            yield REPLACED.format(override.path)


def _work(template: dict[str, Any], listed: Sequence[PodPatch]) -> int:
    """Return an upper bound of the bytes to process to merge all overrides once."""
    merges = sum(len({*each.jobs}) for each in listed)
    largest = max(len(orjson.dumps(pod)) for pod in _pods(template))
    return merges * (largest + sum(_size(each) for each in listed))


def _size(override: PodPatch) -> int:
    return len(orjson.dumps([override.jobs, override.metadata, override.spec]))


def _template(runtime: AnyRuntime) -> dict[str, Any]:
    """Return a copy of the runtime's template with canonical quantities."""
    spec = runtime.spec and runtime.spec.template and runtime.spec.template.spec
    template: dict[str, Any] = thaw(spec)
    for job in template["replicatedJobs"]:
        for _ in rewrite_quantities(job["template"]["spec"]["template"]["spec"], ""):
            pass
    return template


def _pods(template: dict[str, Any]) -> list[Any]:
    """Return the current pod templates; a later merge replaces them and does not modify them."""
    return [job["template"]["spec"]["template"] for job in template["replicatedJobs"]]


def _apply(template: dict[str, Any], listed: Sequence[PodPatch]) -> None:
    for override in listed:
        for _ in merge_into_copies(override, template):
            pass
