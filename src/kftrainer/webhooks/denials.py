"""How often which rule of admission was broken, for dashboards."""

import re
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from kftrainer.machinery.admission import OTHER, AdmissionRequest, Verdict
from kftrainer.machinery.admission_handler import OWN_RULES
from kftrainer.runtime.rule_names import Rule
from kftrainer.webhooks.registration import KINDS, webhook_path

MOST_RULES: Final = 200
TOO_MANY_RULES: Final = "_other"
NAME: Final = re.compile(r"[a-zA-Z0-9][-_./a-zA-Z0-9]{0,62}")


class Denials:
    """Counts broken rules by kind.

    Plugins name rules of their own: beyond a bound they become one, and ours are always told apart.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._family = Counter(
            "kftrainer_admission_denials_total",
            "Rules of admission that were broken, not requests: one that breaks three counts for "
            "each of them. Dry runs do not count.",
            ("kind", "rule"),
            registry=registry,
        )
        # Not the kind that a request says it is about: who sends it could make up any.
        self._kinds = {webhook_path(resource): resource.kind for resource in KINDS}
        self._rules = {*map(str, Rule), *OWN_RULES}

    def count(self, path: str, request: AdmissionRequest, verdict: Verdict) -> None:
        """Somebody was refused at this path."""
        kind = self._kinds.get(path)
        if kind is None or request.dry_run:
            return
        for rule in {self._bounded(each) for each in verdict.rules or (OTHER,)}:
            self._family.labels(kind, rule).inc()

    def _bounded(self, rule: str) -> str:
        """The rule, if there are not too many of them yet; one whose name is none is another."""
        if rule in self._rules:
            return rule
        if not NAME.fullmatch(rule):
            return OTHER
        if len(self._rules) >= MOST_RULES:
            return TOO_MANY_RULES
        self._rules.add(rule)
        return rule
