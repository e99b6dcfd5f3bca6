"""Which jobs of a runtime with an mpi policy train."""

from kftrainer.api import names
from kftrainer.api.trainingruntime import MPIPolicy
from kftrainer.runtime.podset import NodeLayout


def layout_of(policy: MPIPolicy) -> NodeLayout:
    """Return the layout: a launcher, and workers that it reaches by SSH."""
    return NodeLayout(names.JOB_NODE, names.JOB_LAUNCHER, policy.run_launcher_as_node)
