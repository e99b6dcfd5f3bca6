"""Set the MLflow experiment and run name of every TrainJob from its label."""

from typing import ClassVar

from kftrainer import plugin
from kftrainer.plugin import Info, PlannedObject, TrainJob, ValidationResult, env_var, owned

LABEL = "acme.com/experiment"
FIELD = f"metadata.labels[{LABEL}]"


class Tracking(plugin.EnforceMLPolicy, plugin.ComponentBuilder, plugin.CustomValidation):
    """Sets MLflow's environment variables and records each run in a ConfigMap."""

    name: ClassVar[str] = "acme-tracking"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Set MLflow's variables; the TrainJob's own env cannot override them."""
        if (container := info.trainer_container) is not None:  # the runtime has a trainer
            container.set_env(env_var("MLFLOW_EXPERIMENT_NAME", experiment(job)), FIELD)
            container.set_env(env_var("MLFLOW_RUN_NAME", job.metadata.name), "metadata.name")
        info.reserved_env |= {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_NAME"}

    def build_components(self, info: Info, job: TrainJob) -> list[PlannedObject]:
        """Return a ConfigMap that describes the run and is owned by the TrainJob."""
        name, labels = f"{job.metadata.name}-run", {LABEL: experiment(job)}
        card = owned(plugin.CONFIG_MAPS, job, name, labels=labels)
        nodes = info.num_nodes(job) or 1
        card["data"] = {"runtime": info.runtime.metadata.name, "nodes": str(nodes)}
        return [PlannedObject(plugin.CONFIG_MAPS, card)]

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Require the label on creation, and reject a change of experiment."""
        findings = ValidationResult()
        if old is None and not (new.metadata.labels or {}).get(LABEL):
            detail = "the experiment that this is a run of"
            findings.refuse(plugin.required(FIELD, detail, rule=LABEL))
        if old and experiment(old) != experiment(new):
            findings.refuse(plugin.forbidden(FIELD, "a run stays in its experiment", rule=LABEL))
        return findings


def experiment(job: TrainJob) -> str:
    return (job.metadata.labels or {}).get(LABEL) or "Default"
