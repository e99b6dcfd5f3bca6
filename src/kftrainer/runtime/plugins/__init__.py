"""The plugins that come with kftrainer, one module each; none of them knows another."""

from kftrainer.runtime.plugins.coscheduling import CoScheduling
from kftrainer.runtime.plugins.jobset import JobSet
from kftrainer.runtime.plugins.mpi.mpi import MPI
from kftrainer.runtime.plugins.plainml import PlainML
from kftrainer.runtime.plugins.torch.torch import Torch
from kftrainer.runtime.plugins.volcano.volcano import Volcano

# In this order they run within each phase.
PLUGINS = (PlainML, Torch, MPI, CoScheduling, Volcano, JobSet)
