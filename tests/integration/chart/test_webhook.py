"""The webhook configuration: the Service that is called and the CA bundle that is trusted."""

from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from kftrainer.api.configuration import DEFAULT
from kftrainer.webhooks.registration import configuration, host_names, mutating_configuration
from tests.integration.chart.conftest import Rendering
from tests.integration.chart.test_manager import (
    CERTIFICATE,
    MANAGER,
    configuration_in,
    container_in,
    pod_in,
)
from tests.integration.chart.value_sets import AUTHORITY, CERT_MANAGER, PROVIDED, TEAMS
from tests.support.helm import NAMESPACE, Object, Values, merged, named, of_kind


def webhooks_in(objects: list[Object], kind: str = "Validating") -> Object:
    return named(objects, f"{kind}WebhookConfiguration")


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_registration_matches_the_manager(rendered: Rendering, policy: str) -> None:
    found = webhooks_in(rendered({"webhook": {"failurePolicy": policy, "timeoutSeconds": 7}}))
    expected = configuration(MANAGER, NAMESPACE, required=policy == "Fail")
    assert found["metadata"]["name"] == expected["metadata"]["name"]
    for each in expected["webhooks"]:
        each["timeoutSeconds"] = 7
    assert found["webhooks"] == expected["webhooks"]


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_mutating_registration_matches_the_manager(rendered: Rendering, policy: str) -> None:
    values = {"webhook": {"failurePolicy": policy, "timeoutSeconds": 7}}
    found = webhooks_in(rendered(values), "Mutating")
    expected = mutating_configuration(MANAGER, NAMESPACE)
    assert found["metadata"]["name"] == expected["metadata"]["name"]
    [webhook] = expected["webhooks"]
    assert found["webhooks"] == [{**webhook, "timeoutSeconds": 7}]


def test_both_kinds_of_webhooks_have_the_same_settings(rendered: Rendering) -> None:
    values = {
        "watchNamespaces": TEAMS,
        "webhook": {"annotations": {"a": "b"}, "pathTokens": ["0123456789abcdef"]},
    }
    objects = rendered(PROVIDED, {"certs": {"caBundle": AUTHORITY}}, values)
    ours, theirs = webhooks_in(objects), webhooks_in(objects, "Mutating")
    for field in ("annotations", "labels"):
        assert ours["metadata"][field] == theirs["metadata"][field]
    [defaulter] = theirs["webhooks"]
    validator = ours["webhooks"][-1]
    for field in ("namespaceSelector", "rules", "timeoutSeconds", "sideEffects"):
        assert defaulter[field] == validator[field]
    path = validator["clientConfig"]["service"]["path"].replace("validate", "mutate")
    assert defaulter["clientConfig"] == {
        **validator["clientConfig"],
        "service": {**validator["clientConfig"]["service"], "path": path},
    }


def test_ca_bundle_is_written_by_the_manager_only(rendered: Rendering) -> None:
    objects = rendered()
    for kind in ("Validating", "Mutating"):
        webhooks = webhooks_in(objects, kind)["webhooks"]
        assert all("caBundle" not in each["clientConfig"] for each in webhooks)
    # Keys of its own, even empty ones, would be helm's, and taken from the manager.
    assert set(named(objects, "Secret")) == {"apiVersion", "kind", "metadata", "type"}


@pytest.mark.parametrize(
    "bundle",
    [AUTHORITY, AUTHORITY.strip(), b64encode(AUTHORITY.encode()).decode()],
    ids=["pem", "without-end", "base64"],
)
def test_a_provided_authority_is_trusted(rendered: Rendering, bundle: str) -> None:
    found = webhooks_in(rendered(PROVIDED, {"certs": {"caBundle": bundle}}))
    for each in found["webhooks"]:
        assert b64decode(each["clientConfig"]["caBundle"]).decode() == AUTHORITY


def test_ca_bundle_can_be_injected_by_another_controller(rendered: Rendering) -> None:
    injection = {"cert-manager.io/inject-ca-from-secret": "ns/mine"}
    values = merged(PROVIDED, {"certs": {"caBundle": ""}, "webhook": {"annotations": injection}})
    found = webhooks_in(rendered(values))
    assert found["metadata"]["annotations"] == injection
    assert all("caBundle" not in each["clientConfig"] for each in found["webhooks"])


def test_a_webhook_that_may_fail_needs_no_authority(rendered: Rendering) -> None:
    values = {"certs": {"caBundle": ""}, "webhook": {"failurePolicy": "Ignore"}}
    assert webhooks_in(rendered(PROVIDED, values))


def test_cert_manager_issues_the_certificate_and_injects_its_authority(rendered: Rendering) -> None:
    objects = rendered(CERT_MANAGER)
    certificate = named(objects, "Certificate", CERTIFICATE)
    name = certificate["metadata"]["name"]
    injected_from = webhooks_in(objects)["metadata"]["annotations"][
        "cert-manager.io/inject-ca-from"
    ]
    assert injected_from == f"{NAMESPACE}/{name}"
    spec = certificate["spec"]
    assert spec["dnsNames"] == list(host_names(MANAGER, NAMESPACE))
    assert (spec["duration"], spec["renewBefore"]) == ("8760h", "720h")
    # It is renewed every year; the trusted authority must stay the same.
    issuer = issuer_of(objects, certificate)
    authority = named(objects, "Certificate", issuer["spec"]["ca"]["secretName"])
    assert authority["spec"]["secretName"] == authority["metadata"]["name"] != name
    assert authority["spec"]["isCA"] is True
    assert authority["spec"]["privateKey"]["rotationPolicy"] == "Never"
    assert issuer_of(objects, authority)["spec"] == {"selfSigned": {}}


def issuer_of(objects: list[Object], certificate: Object) -> Object:
    """Who signs it."""
    reference = certificate["spec"]["issuerRef"]
    assert (reference["group"], reference["kind"]) == ("cert-manager.io", "Issuer")
    return named(objects, "Issuer", reference["name"])


def test_cert_manager_uses_another_secret_than_the_manager(rendered: Rendering) -> None:
    rendered_names = {each["metadata"]["name"] for each in of_kind(rendered(), "Secret")}
    requested_names = {
        each["spec"]["secretName"] for each in of_kind(rendered(CERT_MANAGER), "Certificate")
    }
    assert rendered_names
    assert not rendered_names & requested_names


def test_an_issuer_of_ones_own(rendered: Rendering) -> None:
    own = {"name": "corporate", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    values = {"certs": {"certManager": {"issuerRef": own}, "clusterDomain": "corp.example"}}
    objects = rendered(CERT_MANAGER, values)
    assert not of_kind(objects, "Issuer")
    spec = named(objects, "Certificate")["spec"]
    assert spec["issuerRef"] == own
    assert spec["dnsNames"][1] == f"{MANAGER}.{NAMESPACE}.svc.corp.example"


def mounted(objects: list[Object], file: str) -> Object:
    """The volume in which a file of the manager's container is."""
    folder = str(Path(file).parent)
    mounts = container_in(objects)["volumeMounts"]
    [name] = [each["name"] for each in mounts if each["mountPath"] == folder]
    volumes: list[Object] = pod_in(objects)["volumes"]
    [volume] = [each for each in volumes if each["name"] == name]
    return volume


@pytest.mark.parametrize("source", ["secretName", "configMapName"])
def test_client_certificates_are_required_with_an_authority(
    rendered: Rendering, source: str
) -> None:
    names = ["kube-apiserver-webhook"]
    objects = rendered({"webhook": {"clientCA": {source: "clients", "names": names}}})
    settings = configuration_in(objects).webhook
    assert settings.client_names == names
    assert Path(settings.client_ca_file).name == "ca.crt"
    volume = mounted(objects, settings.client_ca_file)
    if source == "secretName":  # it may hold the authority's key, too
        items = [{"key": "ca.crt", "path": "ca.crt"}]
        assert volume["secret"] == {"secretName": "clients", "items": items}
    else:
        assert volume["configMap"] == {"name": "clients"}


def test_api_server_calls_the_first_token_and_the_manager_accepts_all(rendered: Rendering) -> None:
    tokens = ["0123456789abcdef", "fedcba9876543210", "plain"]
    objects = rendered({"webhook": {"pathTokens": tokens}})
    expected = configuration(MANAGER, NAMESPACE)["webhooks"]
    for each, plain in zip(webhooks_in(objects)["webhooks"], expected, strict=True):
        path = plain["clientConfig"]["service"]["path"]
        assert each["clientConfig"]["service"]["path"] == f"{path}/{tokens[0]}"
    secret = mounted(objects, configuration_in(objects).webhook.path_token_file)["secret"]
    found = named(objects, "Secret", secret["secretName"])
    assert found["stringData"] == {"tokens": "\n".join(tokens)}


def test_path_has_no_token_by_default_and_while_one_is_introduced(rendered: Rendering) -> None:
    expected = configuration(MANAGER, NAMESPACE)["webhooks"]
    for tokens in ([], ["plain", "0123456789abcdef"]):
        found = webhooks_in(rendered({"webhook": {"pathTokens": tokens}}))["webhooks"]
        assert [each["clientConfig"] for each in found] == [
            each["clientConfig"] for each in expected
        ]
    assert configuration_in(rendered()).webhook == DEFAULT.webhook


OWN = {"matchLabels": {"training": "yes"}}
WATCHED = {
    "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": TEAMS}]
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"watchNamespaces": TEAMS}, WATCHED),
        ({"webhook": {"namespaceSelector": OWN}}, OWN),
        ({"watchNamespaces": TEAMS, "webhook": {"namespaceSelector": OWN}}, OWN),
    ],
    ids=["all", "watched", "chosen", "chosen-over-watched"],
)
def test_namespace_selector_follows_the_values(
    rendered: Rendering, values: Values, expected: object
) -> None:
    for each in webhooks_in(rendered(values))["webhooks"]:
        assert each.get("namespaceSelector") == expected
