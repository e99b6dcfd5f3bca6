"""Admission policies for the manager: for its ServiceAccount only, with every release and mode."""

from pathlib import Path

import pytest
import yaml

from tests.integration.chart.conftest import Rendering
from tests.integration.chart.value_sets import CERT_MANAGER, PROVIDED, TEAMS, WITHOUT_WEBHOOK
from tests.support.helm import (
    CHART,
    IMAGE,
    WITHOUT_CRDS,
    Object,
    Values,
    helm,
    merged,
    named,
    of_kind,
    refusal,
    render,
)

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
SERVED = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"


def condition(policy: Object) -> str:
    [found] = policy["spec"]["matchConditions"]
    return str(found["expression"])


@pytest.mark.parametrize(
    ("values", "name", "namespace", "user"),
    [
        ({}, "kubeflow-trainer", "kubeflow-system", "kubeflow-trainer-controller-manager"),
        ({}, "other", "elsewhere", "other-controller-manager"),
        ({"fullnameOverride": "short"}, "other", "elsewhere", "short-controller-manager"),
        ({"serviceAccount": {"create": False, "name": "theirs"}}, "other", "elsewhere", "theirs"),
        ({"watchNamespaces": TEAMS}, "other", "elsewhere", "other-controller-manager"),
    ],
    ids=["default", "release", "fullname", "account", "namespaces"],
)
def test_policies_apply_to_the_managers_account_only(
    helm_program: Path, values: Values, name: str, namespace: str, user: str
) -> None:
    given = merged(WITHOUT_CRDS, values)
    objects = render(helm_program, given, name=name, namespace=namespace)
    policies, bindings = of_kind(objects, POLICY), of_kind(objects, BINDING)
    expected = f"request.userInfo.username == 'system:serviceaccount:{namespace}:{user}'"
    assert [condition(each) for each in policies] == [expected] * 4
    assert [each["spec"] for each in bindings] == [
        {"policyName": each["metadata"]["name"], "validationActions": ["Deny"]} for each in policies
    ]
    assert {each["spec"]["failurePolicy"] for each in policies} == {"Fail"}


@pytest.mark.parametrize("values", [CERT_MANAGER, PROVIDED, WITHOUT_WEBHOOK])
def test_no_secret_is_exempt_where_the_manager_creates_no_certificate(
    rendered: Rendering, values: Values
) -> None:
    def exemption(objects: list[Object]) -> str:
        policy = named(objects, POLICY, "kubeflow-trainer-manager-objects")
        [found] = [each for each in policy["spec"]["variables"] if each["name"] == "isCertificate"]
        return str(found["expression"])

    assert "'kubeflow-trainer-webhook-cert'" in exemption(rendered())
    assert exemption(rendered(values)) == "false"


@pytest.mark.parametrize(
    ("served", "count"), [((), 4), (("v1/Secret",), 0), (("v1/Secret", SERVED), 4)]
)
def test_policies_are_rendered_unless_the_server_is_known_not_to_serve_them(
    helm_program: Path, served: tuple[str, ...], count: int
) -> None:
    flags = [flag for each in served for flag in ("--api-versions", each)]
    values = merged(IMAGE, WITHOUT_CRDS)
    text = helm(helm_program, "template", "release", str(CHART), *flags, values=values)
    objects = [each for each in yaml.safe_load_all(text) if each]
    assert len(of_kind(objects, POLICY)) == len(of_kind(objects, BINDING)) == count


@pytest.mark.parametrize(
    "kind", ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "x' || 'a"]
)
def test_types_of_secrets_that_are_credentials_of_the_cluster_are_refused(
    helm_program: Path, kind: str
) -> None:
    message = refusal(helm_program, values={"managerPolicy": {"secretTypes": [kind]}})
    assert "managerPolicy" in message
    assert "secretTypes" in message
