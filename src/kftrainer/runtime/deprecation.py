"""Runtimes that are on their way out, and what to say about them."""

from kftrainer.api import names
from kftrainer.runtime.info import AnyRuntime

POLICY = (
    "https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime/"
    "#runtime-deprecation-policy"
)


def deprecation(runtime: AnyRuntime) -> str | None:
    """What to warn of, if the runtime is labelled as deprecated: its kind and name come first."""
    labels = runtime.metadata.labels or {}
    if labels.get(names.LABEL_SUPPORT) != names.SUPPORT_DEPRECATED:
        return None
    return (
        f'{runtime.kind} "{runtime.metadata.name}" is deprecated and will be removed in a future '
        f"release of Kubeflow Trainer. See runtime deprecation policy: {POLICY}"
    )
