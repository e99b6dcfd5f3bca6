"""Warnings about overrides that have no effect."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from kftrainer.api.limits import values_in
from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.manifests import thaw
from kftrainer.runtime.overrides import apply_override, overrides
from kftrainer.runtime.resources.quantities import rewrite_quantities

CHANGES_NOTHING = "{} changes nothing: the pods of its jobs are like that already"
UNDONE = "{} has no effect: a later override says otherwise about all of it"
# More overrides than this are rare, and comparing them would take long.
MOST_MERGED, MOST_COMPARED = 64, 8
MOST_WORK = 512 * 1024  # bytes of pods and overrides to process; beyond, there is no warning
MOST_VALUES = 500  # fields and items of all overrides

Placed = tuple[str, PodTemplateOverride]


def ineffective_overrides(runtime: AnyRuntime, job: TrainJob) -> Iterator[str]:
    """Yield a warning for each override without which all pods would be the same."""
    said = [*overrides(job)]
    if not 0 < len(said) <= MOST_MERGED:
        return
    if _have_many_values(said):
        return
    template = _template(runtime)
    work = _work(template, said)
    if work > MOST_WORK:
        return
    before, changing = _pods(template), []
    for path, override in said:
        _apply(template, [(path, override)])
        after = _pods(template)
        if after == before:
            yield CHANGES_NOTHING.format(path)
        else:
            changing.append((path, override))
        before = after
    if 1 < len(changing) <= MOST_COMPARED and work * len(changing) <= MOST_WORK:
        yield from _undone(runtime, changing, before)


def _have_many_values(said: Sequence[Placed]) -> bool:
    """Whether the overrides have more than MOST_VALUES fields; stops counting there."""
    values = 0
    for _, override in said:
        values += values_in(override.spec or {})
        if values > MOST_VALUES:
            return True
    return False


def _undone(runtime: AnyRuntime, said: Sequence[Placed], result: list[Any]) -> Iterator[str]:
    """Yield a warning for each override whose effect later overrides undo."""
    for index, (path, _) in enumerate(said[:-1]):
        template = _template(runtime)
        _apply(template, [*said[:index], *said[index + 1 :]])
        if _pods(template) == result:
            yield UNDONE.format(path)


def _work(template: dict[str, Any], said: Sequence[Placed]) -> int:
    """Return an upper bound of the bytes to process to merge all overrides once."""
    merges = sum(len({target.name for target in each.target_jobs}) for _, each in said)
    largest = max(len(orjson.dumps(pod)) for pod in _pods(template))
    return merges * (largest + sum(len(orjson.dumps(each.dump())) for _, each in said))


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


def _apply(template: dict[str, Any], said: Sequence[Placed]) -> None:
    for path, override in said:
        for _ in apply_override(path, override, template):
            pass
