"""Built-in plugins, one module or package each. Plugins do not import each other."""

from kftrainer.runtime.plugins.coscheduling import CoScheduling
from kftrainer.runtime.plugins.jobset import JobSet
from kftrainer.runtime.plugins.mpi.mpi import MPI
from kftrainer.runtime.plugins.mpi.rules import MPIRule
from kftrainer.runtime.plugins.plainml import PlainML
from kftrainer.runtime.plugins.torch.rules import TorchRule
from kftrainer.runtime.plugins.torch.torch import Torch
from kftrainer.runtime.plugins.volcano.rules import VolcanoRule
from kftrainer.runtime.plugins.volcano.volcano import Volcano

# Within each phase, plugins run in this order.
PLUGINS = (PlainML, Torch, MPI, CoScheduling, Volcano, JobSet)
# Names of the admission rules that are not in `kftrainer.runtime.validation.rules`.
PLUGIN_RULES = (*TorchRule, *MPIRule, *VolcanoRule)
