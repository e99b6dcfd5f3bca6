"""The environment that the TrainJob asks for in the containers that train."""

from collections.abc import Collection, Iterator

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.field import FieldError, invalid
from kftrainer.runtime.info import NO_TRAINER
from kftrainer.runtime.manifests import Piece, thaw
from kftrainer.runtime.podset import Container


def set_user_env(container: Container, job: TrainJob, reserved: Collection[str]) -> None:
    """Set the TrainJob's variables, but for those that a framework has set or will set."""
    for index, variable in enumerate((job.spec.trainer or NO_TRAINER).env or ()):
        if variable.get("name") not in reserved:
            container.set_env(said(variable), f"spec.trainer.env[{index}]")


def reserved_env_errors(job: TrainJob, reserved: Collection[str]) -> Iterator[FieldError]:
    """The TrainJob's variables that are a framework's to set."""
    env = (job.spec.trainer or NO_TRAINER).env or ()
    taken = sorted({each.get("name", "") for each in env}.intersection(reserved))
    if taken:
        detail = f"must not have reserved envs, invalid envs configured: [{' '.join(taken)}]"
        yield invalid("spec.trainer.env", taken, detail)


def said(variable: Piece) -> Piece:
    """A copy of the variable as it is applied: one that says nothing is empty."""
    copy: Piece = thaw(variable)
    return copy if "valueFrom" in copy or "value" in copy else {**copy, "value": ""}
