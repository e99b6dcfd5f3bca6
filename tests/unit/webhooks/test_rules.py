"""Every denial names its rule: for the corpus and for random objects."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kftrainer.api.schema.offline import KINDS, stored
from kftrainer.machinery.webhook.admission import AdmissionRequest, AdmissionResponse, Validator
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.plugins import PLUGIN_RULES
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.runtime.validation.rules import Rule
from kftrainer.webhooks.registration import webhook_path
from kftrainer.webhooks.validators import validators_by_path
from tests.integration.webhooks.cases import JobCase, RuntimeCase, job_of, placed
from tests.integration.webhooks.runtime_cases import RUNTIME_CASES
from tests.integration.webhooks.trainjob_cases import JOB_CASES, STORED_BEFORE
from tests.support.fake_clock import FakeClock
from tests.support.objects import Object
from tests.support.random_objects import mutants
from tests.support.runtimes import SHIPPED

NAMESPACE = "team"
CLUSTER_KIND = "ClusterTrainingRuntime"
OLD = [placed(manifest, CLUSTER_KIND, name, "") for name, manifest in STORED_BEFORE.items()]
PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "a"},
}
RUNTIMES = Runtimes(load_framework())
SEED, MUTANTS = 20_260_201, 600
each_kind = pytest.mark.parametrize("kind", ["TrainingRuntime", CLUSTER_KIND])


def review(document: Object, *existing: Object, old: Object | None = None) -> AdmissionResponse:
    """The answer to who wants to create the document, or to change the old one into it."""
    resource = KINDS[document["kind"]]
    validators = validators_by_path(RUNTIMES, GivenObjects(existing), None, clock=FakeClock())
    validator: Validator = validators[webhook_path(resource)]
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    request = AdmissionRequest(
        uid="1",
        operation="CREATE" if old is None else "UPDATE",
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        namespace=NAMESPACE if resource.namespaced else "",
        name=name if isinstance(name, str) else "",
        object=document,
        old_object=old,
        dry_run=False,
    )

    async def reviewed() -> AdmissionResponse:
        return await validator(request)

    response = asyncio.run(reviewed())
    return replace(response, warnings=tuple(response.warnings))


def as_stored(document: Object) -> Any:
    """The document with what the API server adds to it."""
    return stored(document).document


@each_kind
@pytest.mark.parametrize("case", JOB_CASES, ids=str)
def test_trainjob_denial_reports_the_violated_rule(case: JobCase, kind: str) -> None:
    name = case.runtime["metadata"]["name"] if case.runtime else "None"
    runtimes = [placed(case.runtime, kind, name, NAMESPACE)] if case.runtime else []
    job = as_stored(job_of(case, case.wrong, kind, name, NAMESPACE))
    response = review(job, *runtimes, *OLD, PRIORITY)
    assert response.allowed is case.is_warning
    if case.message.startswith("["):  # who breaks it breaks something else, too
        assert case.rule in response.rules
    else:
        assert response.rules == (() if case.is_warning else (case.rule,))


@each_kind
@pytest.mark.parametrize("case", RUNTIME_CASES, ids=str)
def test_runtime_denial_reports_the_violated_rule(case: RuntimeCase, kind: str) -> None:
    response = review(as_stored(placed(case.wrong, kind, "runtime", NAMESPACE)))
    assert response.allowed is case.is_warning
    assert response.rules == (() if case.is_warning else (case.rule,))


def test_denials_of_random_documents_report_a_rule() -> None:
    """They come as no API server would let them: most are refused as no such objects."""
    ours = {*map(str, (*Rule, *PLUGIN_RULES))}
    seen: set[str] = set()
    for what, mutant in mutants(SEED, MUTANTS):
        response = review(mutant, *SHIPPED)
        assert response.allowed or response.rules, what
        assert set(response.rules) <= ours, what
        seen |= set(response.rules)
    assert {"schema", "runtime-missing", "runtime-template"} <= seen
