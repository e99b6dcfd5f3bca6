"""NodeLayout: which jobs and containers of a runtime's template train."""

from dataclasses import dataclass

from kftrainer.api import names


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Jobs of the template whose pods are the nodes of a training.

    By default, the nodes are the pods of the job with the step `trainer`. With `worker`, they are
    the pods of the job with this name, and the job named `launcher` starts the processes there.
    """

    worker: str | None = None
    launcher: str | None = None
    launcher_is_node: bool = False  # whether the launcher counts as one of the nodes

    def container_names(self, job_name: str) -> tuple[str, ...]:
        """Return the possible names of the training container in this job, preferred first."""
        if job_name == self.launcher:
            return names.CONTAINER_NODE, job_name
        return (names.CONTAINER_NODE,)

    def workers(self, num_nodes: int, *, has_launcher: bool) -> int:
        """Return the number of workers for this number of nodes."""
        return num_nodes - (self.launcher_is_node and has_launcher)


TRAINER_ONLY = NodeLayout()
