"""Sets the environment variables of `spec.trainer.env`, and rejects reserved ones.

Plugins reserve variables: `plugins.torch` those that begin with `PET_`, for example.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from kftrainer.api import names
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, invalid
from kftrainer.runtime.info import NO_TRAINER, Info
from kftrainer.runtime.object_builders import Piece, by_name, indices_by_name, thaw
from kftrainer.runtime.patches.pod_patches import pod_patches
from kftrainer.runtime.patches.targets import STEP_CONTAINERS
from kftrainer.runtime.podset import Container
from kftrainer.runtime.resources.quantities import CONTAINER_LISTS
from kftrainer.runtime.trace import NO_TRACE
from kftrainer.runtime.validation.rules import Rule

NO_OTHERS: Mapping[str, Collection[str]] = MappingProxyType({})


def set_user_env(container: Container, job: TrainJob, reserved: Collection[str]) -> None:
    """Set the TrainJob's variables, except those that are reserved for a framework."""
    env = (job.spec.trainer or NO_TRAINER).env or ()
    set_all(container, env, "spec.trainer.env", skip=reserved)


def set_all(
    container: Container, env: Sequence[Piece], path: str, *, skip: Collection[str] = ()
) -> None:
    """Set the variables at this path, except those in `skip`, in linear time.

    A TrainJob has room for 40,000 variables, too many to search the list for each one.
    """
    current = container.env
    indices = indices_by_name(current)
    for variable in env:
        name = variable.get("name")
        if name in skip:
            continue
        if (index := indices.get(name)) is None:
            indices[name] = len(current)
            current.append(with_value(variable))
        elif current[index] != variable:  # usually another plugin has set the same value before
            current[index] = with_value(variable)
    if current:
        container.body["env"] = current  # the field was missing or null
    if container.trace is not NO_TRACE:  # formatting many paths is the most expensive part
        _note_all(container, env, path, skip)


def _note_all(container: Container, env: Sequence[Piece], path: str, skip: Collection[str]) -> None:
    for index, name in enumerate(map(by_name, env)):
        if name not in skip:
            container.trace.note(f"{container.path}.env[{name}]", f"{path}[{index}]")


def reserved_env_errors(
    info: Info,
    job: TrainJob,
    reserved: Collection[str],
    *,
    rule: str = Rule.RESERVED_ENV,
    others: Mapping[str, Collection[str]] = NO_OTHERS,
) -> Iterator[FieldError]:
    """Yield errors for reserved variables that the TrainJob sets in the trainer container.

    `others` are other containers that get them: their names by the names of their jobs.
    """
    env = (job.spec.trainer or NO_TRAINER).env or ()
    yield from _taken("spec.trainer.env", env, reserved, rule)
    yield from _reserved_in_initializers(job, info, reserved, rule, others)
    trainer, trains = info.trainer, info.trainer_container
    containers = {name: {*found} for name, found in others.items()}
    if trainer is not None and trains is not None:
        containers.setdefault(trainer.name, set()).add(trains.name)
    for patch in pod_patches(job) if containers else ():
        concerned = {name for target in patch.jobs for name in containers.get(target, ())}
        for field in CONTAINER_LISTS:
            for index, container in enumerate(patch.spec.get(field) or ()):
                name = container.get("name")
                # Every variable of a step container in a patch is rejected elsewhere.
                is_step = field == "containers" and name in STEP_CONTAINERS
                if name in concerned and not is_step:
                    where = f"{patch.spec_path}.{field}[{index}].env"
                    yield from _taken(where, container.get("env") or (), reserved, rule)


def _reserved_in_initializers(
    job: TrainJob,
    info: Info,
    reserved: Collection[str],
    rule: str,
    others: Mapping[str, Collection[str]],
) -> Iterator[FieldError]:
    """Yield errors for variables of initializers whose containers get the reserved ones."""
    if not others or (initializer := job.spec.initializer) is None:
        return
    for step, field, asset in (
        (names.STEP_DATASET_INITIALIZER, "dataset", initializer.dataset),
        (names.STEP_MODEL_INITIALIZER, "model", initializer.model),
    ):
        jobs = [each.name for each in info.with_ancestor(step)]
        if asset is not None and any(step in others.get(name, ()) for name in jobs):
            yield from _taken(f"spec.initializer.{field}.env", asset.env or (), reserved, rule)


def _taken(
    path: str, env: Sequence[Piece], reserved: Collection[str], rule: str
) -> Iterator[FieldError]:
    taken = sorted(frozenset(reserved).intersection([each.get("name") for each in env]))
    if taken:
        detail = f"must not have reserved envs, invalid envs configured: [{' '.join(taken)}]"
        yield invalid(path, taken, detail, rule=rule)  # names only: values may be secret


def with_value(variable: Piece) -> Piece:
    """Return a copy of the variable to apply; a missing value becomes the empty string."""
    if "valueFrom" in variable:
        copy: Piece = thaw(variable)
        return copy
    # Most variables are a name and a value, both strings, so a shallow copy is enough.
    return {**variable} if "value" in variable else {**variable, "value": ""}
