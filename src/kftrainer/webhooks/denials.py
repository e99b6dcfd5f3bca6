"""Counts denied admission requests by violated rule."""

import re
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from kftrainer.machinery.metrics.bounded_labels import OTHER, BoundedLabels
from kftrainer.machinery.webhook.admission import AdmissionRequest, AdmissionResponse
from kftrainer.machinery.webhook.handler import OWN_RULES
from kftrainer.runtime.plugins import PLUGIN_RULES
from kftrainer.runtime.validation.rules import Rule
from kftrainer.webhooks.registration import DEFAULTED_KINDS, KINDS, defaulter_path, webhook_path

MOST_RULES: Final = 200
NAME: Final = re.compile(r"[a-zA-Z0-9][-_./a-zA-Z0-9]{0,62}")


class Denials:
    """Counts violated rules by kind.

    Plugins define rule names of their own: beyond a limit these share one label value, as do errors
    without a rule. Built-in rules always have their own.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._family = Counter(
            "kftrainer_admission_denials_total",
            "Violated admission rules: a request that violates several rules counts for each of "
            "them. Dry runs do not count.",
            ("kind", "rule"),
            registry=registry,
        )
        # Not the kind in the request, which the client could choose freely.
        self._kinds = {
            **{webhook_path(resource): resource.kind for resource in KINDS},
            **{defaulter_path(resource): resource.kind for resource in DEFAULTED_KINDS},
        }
        self._rules = BoundedLabels(MOST_RULES)
        for rule in (*map(str, (*Rule, *PLUGIN_RULES)), *OWN_RULES):
            self._rules.hold(rule)

    def count(self, path: str, request: AdmissionRequest, response: AdmissionResponse) -> None:
        """Count the rules of a request that was denied at this path."""
        kind = self._kinds.get(path)
        if kind is None or request.dry_run:
            return
        for rule in {self._bounded(each) for each in response.rules or (OTHER,)}:
            self._family.labels(kind, rule).inc()

    def _bounded(self, rule: str) -> str:
        """Return the rule as a label value, or OTHER if it is invalid or there are too many."""
        label = self._rules.label(rule) if NAME.fullmatch(rule) else OTHER
        self._rules.hold(label)  # never released, like its series
        return label
