"""Every TrainJob is a run of an experiment, which its label names: MLflow hears of it."""

from typing import ClassVar

from kftrainer.api.resources import CONFIG_MAPS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import Findings, forbidden, required
from kftrainer.runtime.info import Info
from kftrainer.runtime.manifests import env_var, owned
from kftrainer.runtime.phases import ComponentBuilder, CustomValidation, EnforceMLPolicy
from kftrainer.runtime.planned import Planned

LABEL = "acme.com/experiment"
FIELD = f"metadata.labels[{LABEL}]"


class Tracking(EnforceMLPolicy, ComponentBuilder, CustomValidation):
    """Sets MLflow's variables, and keeps a card of the run for `kubectl get cm -l LABEL=…`."""

    name: ClassVar[str] = "acme-tracking"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Say which run this is; the TrainJob's own env cannot say otherwise."""
        if (container := info.trainer_container) is not None:  # the runtime has a trainer
            container.set_env(env_var("MLFLOW_EXPERIMENT_NAME", experiment(job)), FIELD)
            container.set_env(env_var("MLFLOW_RUN_NAME", job.metadata.name), "metadata.name")
        info.reserved_env |= {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_NAME"}

    def build_components(self, info: Info, job: TrainJob) -> list[Planned]:
        """The card: a ConfigMap that goes when the TrainJob goes."""
        card = owned(CONFIG_MAPS, job, f"{job.metadata.name}-run", labels={LABEL: experiment(job)})
        nodes = info.num_nodes(job) or 1
        card["data"] = {"runtime": info.runtime.metadata.name, "nodes": str(nodes)}
        return [Planned(CONFIG_MAPS, card)]

    def validate_train_job(self, info: Info, old: TrainJob | None, new: TrainJob) -> Findings:
        """A new run belongs to an experiment, and stays there."""
        findings = Findings()
        if old is None and not (new.metadata.labels or {}).get(LABEL):
            findings.refuse(required(FIELD, "the experiment that this is a run of", rule=LABEL))
        if old and experiment(old) != experiment(new):
            findings.refuse(forbidden(FIELD, "a run stays in its experiment", rule=LABEL))
        return findings


def experiment(job: TrainJob) -> str:
    return (job.metadata.labels or {}).get(LABEL) or "Default"
