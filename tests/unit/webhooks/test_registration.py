"""Names and paths that charts, dashboards and people know from Kubeflow Trainer."""

from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.webhooks import registration

RULES = {
    "validator.clustertrainingruntime.trainer.kubeflow.org": (
        "/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime",
        "clustertrainingruntimes",
    ),
    "validator.trainingruntime.trainer.kubeflow.org": (
        "/validate-trainer-kubeflow-org-v1alpha1-trainingruntime",
        "trainingruntimes",
    ),
    "validator.trainjob.trainer.kubeflow.org": (
        "/validate-trainer-kubeflow-org-v1alpha1-trainjob",
        "trainjobs",
    ),
}


def test_configuration_has_the_names_of_kubeflow_trainer() -> None:
    configuration = registration.configuration("service", "system")
    assert configuration["metadata"] == {"name": "validator.trainer.kubeflow.org"}
    webhooks = configuration["webhooks"]
    assert [each["name"] for each in webhooks] == list(RULES)
    for webhook, (path, plural) in zip(webhooks, RULES.values(), strict=True):
        service = {"name": "service", "namespace": "system", "path": path, "port": 443}
        assert webhook["clientConfig"] == {"service": service}
        assert webhook["rules"] == [
            {
                "apiGroups": ["trainer.kubeflow.org"],
                "apiVersions": ["v1alpha1"],
                "resources": [plural],
                "operations": ["CREATE", "UPDATE"],
            }
        ]
        settings = (webhook["failurePolicy"], webhook["sideEffects"])
        assert settings == ("Fail", "None")
        assert webhook["admissionReviewVersions"] == ["v1"]


def test_webhook_is_not_called_for_deleted_objects_and_bookkeeping() -> None:
    webhooks = registration.configuration("service", "system")["webhooks"]
    conditions = [
        {each["name"]: each["expression"] for each in webhook["matchConditions"]}
        for webhook in webhooks
    ]
    deleted = "oldObject == null || !has(oldObject.metadata.deletionTimestamp)"
    assert [each["not-being-deleted"] for each in conditions] == [deleted] * 3
    labels = ("support", "framework")
    of_runtimes = " || ".join(
        (
            "oldObject == null || object.?spec != oldObject.?spec",
            *(
                f"object.metadata.?labels[?'trainer.kubeflow.org/{label}'] != "
                f"oldObject.metadata.?labels[?'trainer.kubeflow.org/{label}']"
                for label in labels
            ),
        )
    )
    of_train_jobs = (
        "oldObject == null || object.?spec != oldObject.?spec || object.metadata.?labels != "
        "oldObject.metadata.?labels || object.metadata.?annotations != "
        "oldObject.metadata.?annotations"
    )
    assert [each["content-changes"] for each in conditions] == [
        of_runtimes,
        of_runtimes,
        of_train_jobs,
    ]


def test_mutating_configuration_has_the_names_of_kubeflow_trainer() -> None:
    spec_changes = "oldObject == null || object.?spec != oldObject.?spec"
    deleted = "oldObject == null || !has(oldObject.metadata.deletionTimestamp)"
    path = "/mutate-trainer-kubeflow-org-v1alpha1-trainjob"
    assert registration.mutating_configuration("service", "system") == {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "defaulter.trainer.kubeflow.org"},
        "webhooks": [
            {
                "name": "defaulter.trainjob.trainer.kubeflow.org",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "IfNeeded",
                "clientConfig": {
                    "service": {
                        "name": "service",
                        "namespace": "system",
                        "path": path,
                        "port": 443,
                    }
                },
                "rules": [
                    {
                        "apiGroups": ["trainer.kubeflow.org"],
                        "apiVersions": ["v1alpha1"],
                        "resources": ["trainjobs"],
                        "operations": ["CREATE", "UPDATE"],
                    }
                ],
                "matchConditions": [
                    {"name": "not-being-deleted", "expression": deleted},
                    {"name": "spec-changes", "expression": spec_changes},
                ],
            }
        ],
    }


def test_optional_webhook_has_failure_policy_ignore() -> None:
    configuration = registration.configuration("service", "system", required=False)
    assert {each["failurePolicy"] for each in configuration["webhooks"]} == {"Ignore"}


def test_api_server_uses_the_first_host_name() -> None:
    assert registration.host_names("service", "system")[0] == "service.system.svc"


def test_external_manager_is_registered_by_an_external_name_service() -> None:
    namespace, service, configuration, mutating = registration.external_objects(
        "service", "system", host="127.0.0.1", port=1234
    )
    assert mutating == registration.mutating_configuration("service", "system", port=1234)
    assert namespace["metadata"]["name"] == service["metadata"]["namespace"] == "system"
    assert service["spec"]["externalName"] == "127.0.0.1"
    ports = {each["clientConfig"]["service"]["port"] for each in configuration["webhooks"]}
    assert ports == {1234}
    assert "ports" not in service["spec"]
    name = registration.webhook_name(TRAIN_JOBS)
    assert name in [each["name"] for each in configuration["webhooks"]]
