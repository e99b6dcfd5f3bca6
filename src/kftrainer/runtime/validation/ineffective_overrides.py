"""Warnings about overrides that have no effect."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from kftrainer.api.limits import values_in
from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.overrides import apply_override, overrides
from kftrainer.runtime.resources.quantities import rewrite_quantities

NO_CHANGE = "{} has no effect: the pods of its jobs already have these values"
REPLACED = "{} has no effect: later overrides replace all of its values"
# More overrides than this are rare, and comparing them would take long.
MOST_MERGED, MOST_COMPARED = 64, 8
MOST_WORK = 512 * 1024  # bytes of pods and overrides to process; beyond, there is no warning
MOST_VALUES = 500  # fields and items of all overrides

OverrideWithPath = tuple[str, PodTemplateOverride]


def ineffective_overrides(runtime: AnyRuntime, job: TrainJob) -> Iterator[str]:
    """Yield a warning for each override without which all pods would be the same."""
    listed = [*overrides(job)]
    if not 0 < len(listed) <= MOST_MERGED:
        return
    if _have_many_values(listed):
        return
    template = _template(runtime)
    work = _work(template, listed)
    if work > MOST_WORK:
        return
    before, changing = _pods(template), []
    for path, override in listed:
        _apply(template, [(path, override)])
        after = _pods(template)
        if after == before:
            yield NO_CHANGE.format(path)
        else:
            changing.append((path, override))
        before = after
    if 1 < len(changing) <= MOST_COMPARED and work * len(changing) <= MOST_WORK:
        yield from _replaced(runtime, changing, before)


def _have_many_values(listed: Sequence[OverrideWithPath]) -> bool:
    """Whether the overrides have more than MOST_VALUES fields; stops counting there."""
    values = 0
    for _, override in listed:
        values += values_in(override.spec or {})
        if values > MOST_VALUES:
            return True
    return False


def _replaced(
    runtime: AnyRuntime, listed: Sequence[OverrideWithPath], result: list[Any]
) -> Iterator[str]:
    """Yield a warning for each override whose values later overrides replace."""
    for index, (path, _) in enumerate(listed[:-1]):
        template = _template(runtime)
        _apply(template, [*listed[:index], *listed[index + 1 :]])
        if _pods(template) == result:
            yield REPLACED.format(path)


def _work(template: dict[str, Any], listed: Sequence[OverrideWithPath]) -> int:
    """Return an upper bound of the bytes to process to merge all overrides once."""
    merges = sum(len({target.name for target in each.target_jobs}) for _, each in listed)
    largest = max(len(orjson.dumps(pod)) for pod in _pods(template))
    return merges * (largest + sum(len(orjson.dumps(each.dump())) for _, each in listed))


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


def _apply(template: dict[str, Any], listed: Sequence[OverrideWithPath]) -> None:
    for path, override in listed:
        for _ in apply_override(path, override, template):
            pass
