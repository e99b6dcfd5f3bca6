"""Names of the admission rules, as used in documentation, metrics and logs."""

from enum import StrEnum


class Rule(StrEnum):
    """The rule that an admission error belongs to; docs/admission.md describes each.

    Plugins have rules of their own.
    """

    # TrainJobs.
    RUNTIME_UNSUPPORTED = "runtime-unsupported"
    RUNTIME_MISSING = "runtime-missing"
    RUNTIME_UNUSABLE = "runtime-unusable"
    PLUGIN_OFF = "plugin-off"
    NAME_TOO_LONG = "name-too-long"
    INITIALIZER_MISSING = "initializer-missing"
    INITIALIZER_CONTAINER_MISSING = "initializer-container-missing"
    INITIALIZER_SECRET_NAME = "initializer-secret-name"  # noqa: S105  not a secret
    RESERVED_ENV = "reserved-env"
    RESOURCE_CLAIMS = "resource-claims"
    QUANTITY_NEGATIVE = "quantity-negative"
    METADATA_FOR_OBJECTS = "metadata-for-objects"
    PROCESSES_NOT_INTEGER = "processes-not-integer"
    OVERRIDE_UNKNOWN_JOB = "override-unknown-job"
    OVERRIDE_UNKNOWN_CONTAINER = "override-unknown-container"
    OVERRIDE_STEP_ENV = "override-step-env"
    OVERRIDE_TOO_MUCH = "override-too-much"
    OVERRIDE_WHILE_RUNNING = "override-while-running"
    OVERRIDE_WHILE_ACTIVE = "override-while-active"
    OVERRIDE_AFTER_JOBSET = "override-after-jobset"
    OVERRIDE_AFTER_END = "override-after-end"
    PATCH_MANAGER = "patch-manager"
    PATCH_UNKNOWN_JOB = "patch-unknown-job"
    PATCH_UNKNOWN_CONTAINER = "patch-unknown-container"
    PATCH_STEP = "patch-step"
    PATCH_STEP_ENV = "patch-step-env"
    PATCH_TOO_MUCH = "patch-too-much"
    PATCH_WHILE_RUNNING = "patch-while-running"
    PATCH_WHILE_ACTIVE = "patch-while-active"
    PATCH_AFTER_JOBSET = "patch-after-jobset"
    PATCH_AFTER_END = "patch-after-end"
    CHANGE_AFTER_JOBSET = "change-after-jobset"
    CHANGE_AFTER_END = "change-after-end"
    JOBSET_REFUSES = "jobset-refuses"
    JOBSET_UNREADABLE = "jobset-unreadable"
    # Runtimes.
    RUNTIME_TEMPLATE = "runtime-template"
    RUNTIME_PODS = "runtime-pods"
    RUNTIME_TRAINER = "runtime-trainer"
    RUNTIME_REPLICAS = "runtime-replicas"
    RUNTIME_STEP_CONTAINER = "runtime-step-container"
    RUNTIME_PARALLELISM = "runtime-parallelism"
    RUNTIME_COUNT = "runtime-count"
    RUNTIME_NAMES = "runtime-names"
    RUNTIME_NAMES_TOO_LONG = "runtime-names-too-long"
    RUNTIME_QUANTITY = "runtime-quantity"
    RUNTIME_JOBSET_REFUSES = "runtime-jobset-refuses"
    # Both.
    TOO_LARGE = "too-large"
    SCHEMA = "schema"  # usually the API server rejects it before it calls the webhook
    PLUGIN_FAILED = "plugin-failed"
