"""PlainML plugin: training without a framework-specific policy."""

from typing import ClassVar

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.runtime.framework.extension_points import CustomValidation, EnforceMLPolicy
from kftrainer.runtime.info import NO_TRAINER, Info
from kftrainer.runtime.plugins.user_env import set_user_env

NO_PROCESSES = (
    "spec.trainer.numProcPerNode has no effect: the runtime has neither a torch nor an mpi policy"
)


class PlainML(EnforceMLPolicy, CustomValidation):
    """Set the number of nodes and the environment, for runtimes without Torch or MPI policy."""

    name: ClassVar[str] = "PlainML"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Prepare the pods of the trainer, unless the runtime has a Torch or MPI policy."""
        trainer, container = info.trainer, info.trainer_container
        if info.policy is not None or trainer is None or container is None:
            return
        num_nodes = info.num_nodes(job)
        if num_nodes is not None:
            trainer.set_count(num_nodes, info.num_nodes_source(job))
        set_user_env(container, job, info.reserved_env)

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Warn about numProcPerNode, which has no effect without a Torch or MPI policy."""
        requested = (new.spec.trainer or NO_TRAINER).num_proc_per_node
        return ValidationResult(
            warnings=[NO_PROCESSES] if info.policy is None and requested else []
        )
