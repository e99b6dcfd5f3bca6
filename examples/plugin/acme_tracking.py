"""Record each TrainJob as a run of an MLflow experiment."""

from kftrainer import plugin
from kftrainer.plugin import Info, PlannedObject, TrainJob, ValidationResult, env_var, owned

LABEL = "acme.com/experiment"
FIELD = f"metadata.labels[{LABEL}]"


class TrackingPolicy(plugin.PolicyModel):
    """Settings of a runtime."""

    server: str


POLICY = plugin.AnnotationPolicy("acme.com/tracking", TrackingPolicy)


class Tracking(
    plugin.EnforceMLPolicy,
    plugin.ComponentBuilder,
    plugin.CustomValidation,
    plugin.PolicyExtension,
    plugin.RBACExtension,
):
    """Sets MLflow's environment variables and records each run in a ConfigMap."""

    name = "acme-tracking"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Set MLflow's variables; the TrainJob's own env cannot override them."""
        policy = POLICY.of(info.runtime)
        if (container := info.trainer_container) is not None:  # the runtime has a trainer
            container.set_env(env_var("MLFLOW_EXPERIMENT_NAME", experiment(job)), FIELD)
            container.set_env(env_var("MLFLOW_RUN_NAME", job.metadata.name), "metadata.name")
            if policy is not None:
                container.set_env(env_var("MLFLOW_TRACKING_URI", policy.server), POLICY.path)
        info.reserved_env |= {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_NAME", "MLFLOW_TRACKING_URI"}

    def build_components(self, info: Info, job: TrainJob) -> list[PlannedObject]:
        """Return a ConfigMap that describes the run and is owned by the TrainJob."""
        name, labels = f"{job.metadata.name}-run", {LABEL: experiment(job)}
        config_map = owned(plugin.CONFIG_MAPS, job, name, labels=labels)
        nodes = info.num_nodes(job) or 1
        config_map["data"] = {"runtime": info.runtime.metadata.name, "nodes": str(nodes)}
        return [PlannedObject(plugin.CONFIG_MAPS, config_map)]

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Require the label on creation, and reject a change of experiment."""
        result = ValidationResult()
        if old is None and not (new.metadata.labels or {}).get(LABEL):
            detail = "the experiment that this is a run of"
            result.add_errors(plugin.required(FIELD, detail, rule=LABEL))
        if old and experiment(old) != experiment(new):
            result.add_errors(plugin.forbidden(FIELD, "a run stays in its experiment", rule=LABEL))
        return result

    def declare_policy(self) -> plugin.AnnotationPolicy[TrackingPolicy]:
        """Return where the settings are in a runtime."""
        return POLICY

    def declare_rbac_rules(self) -> list[plugin.RBACRule]:
        """Return the permission to apply ConfigMaps."""
        return [plugin.RBACRule(plugin.CONFIG_MAPS, plugin.APPLY_VERBS)]


def experiment(job: TrainJob) -> str:
    return (job.metadata.labels or {}).get(LABEL) or "Default"
