"""PlainML: training without a framework that needs anything from us."""

from typing import ClassVar

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.info import Info
from kftrainer.runtime.phases import EnforceMLPolicy
from kftrainer.runtime.user_env import set_user_env


class PlainML(EnforceMLPolicy):
    """Counts the nodes and passes the TrainJob's environment on; for runtimes without a policy."""

    name: ClassVar[str] = "PlainML"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Prepare the pods, unless a framework's plugin does."""
        if info.policy is not None:
            return
        num_nodes = info.num_nodes(job)
        if num_nodes is not None:
            info.trainer.set_count(num_nodes, info.num_nodes_source(job))
        set_user_env(info.trainer_container, job, info.reserved_env)
