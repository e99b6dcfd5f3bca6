"""Reads documents, validates them and plans their TrainJobs, without a cluster.

`kftrainer validate` and `kftrainer render` are this pipeline with different output.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kftrainer import config as configuration
from kftrainer.api.configuration import DEFAULT
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.cli.manifests.checked_object import count_objects
from kftrainer.cli.manifests.documents import Documents, read
from kftrainer.cli.manifests.offline_validation import OfflineAdmission
from kftrainer.cli.manifests.plans import Plan, PlanOptions, plan_train_jobs
from kftrainer.cli.manifests.problems import UNREADABLE, DocumentProblem, ObjectCounts
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.framework.plugin_loader import PluginLoadError, load_framework

NOTHING_TO_CHECK = "contains no TrainJob and no runtime to check"


class SetupError(Exception):
    """The configuration or a plugin cannot be used; the message is one line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All problems in the order of the documents, the numbers of objects, and the plans.

    The plans are complete only if there are no errors.
    """

    problems: Sequence[DocumentProblem]
    counts: ObjectCounts = field(default_factory=ObjectCounts)
    plans: Sequence[Plan] = ()
    has_train_jobs: bool = False

    @property
    def is_invalid(self) -> bool:
        """Whether any document has errors."""
        return any(problem.severity == "error" for problem in self.problems)


def run(sources: Iterable[str], config: Path | None, planning: PlanOptions | None) -> Outcome:
    """Process the documents of these files with the plugins of the configuration.

    Without `planning` the documents are only validated. Raise SetupError for problems that are not
    about a document.
    """
    try:
        framework = load_plugins(config)
        return process(read(sources, require_objects=planning is None), framework, planning)
    except (configuration.ConfigurationError, PluginLoadError, PlanningError) as error:
        raise SetupError(" ".join(str(error).split())) from error


def process(
    documents: Documents, framework: Framework, planning: PlanOptions | None = None
) -> Outcome:
    """Identify and validate all documents, then plan the TrainJobs if `planning` is given."""
    admission = OfflineAdmission(documents, framework, to_plan=planning is not None)
    admission.validate()
    plans = [*plan_train_jobs(admission, planning)] if planning is not None else []
    problems, counts = admission.problems(), count_objects(admission.objects)
    if planning is None and documents.documents and not counts.checked and not documents.errors:
        file = documents.documents[0].place.file
        problems.append(DocumentProblem(file, None, "", UNREADABLE, NOTHING_TO_CHECK))
    return Outcome(problems, counts, plans, has_train_jobs=any(admission.of_kind(TRAIN_JOBS)))


def load_plugins(config: Path | None) -> Framework:
    """Load the plugins of the configuration; raise ConfigurationError or PluginLoadError."""
    settings = DEFAULT if config is None else configuration.read(config)
    plugins = settings.plugins
    return load_framework(plugins.enabled, plugins.disabled, admission=settings.admission)
