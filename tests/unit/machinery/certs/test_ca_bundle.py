"""CA bundles of webhooks, in configurations that other clients write as well."""

from base64 import b64encode
from typing import Any

from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.certs.ca_bundle import first_without
from tests.support.certificates import authority
from tests.support.fake_clock import START
from tests.unit.machinery.certs.certificate_server import CONFIGURATION, configuration, webhook

ONE, OTHER = authority(START), authority(START)


def trusting(*webhooks: Any) -> Any:
    return CONFIGURATION.with_authorities(
        configuration(*webhooks), [ONE.certificate, OTHER.certificate]
    )


def test_bundle_is_written_to_all_webhooks_of_our_service() -> None:
    trusted_bundles = trusting(webhook("a", path="/a"), webhook("b", caBundle=""))
    assert CONFIGURATION.bundles(trusted_bundles) == [ONE.pem + OTHER.pem] * 2
    assert trusted_bundles["webhooks"][0]["clientConfig"]["service"] == {
        "namespace": "ours",
        "name": "hooks",
    }
    assert trusted_bundles["webhooks"][0]["clientConfig"]["path"] == "/a"


def test_a_service_of_the_same_name_elsewhere_is_another_one() -> None:
    theirs = webhook("theirs", ObjectKey("theirs", "hooks"))
    assert trusting(theirs) is None
    assert trusting(theirs, webhook("ours"))["webhooks"][0] == theirs


def test_a_webhook_at_an_address_is_not_ours() -> None:
    assert trusting({"name": "by-url", "clientConfig": {"url": "https://elsewhere"}}) is None


def test_configuration_without_webhooks_is_not_modified() -> None:
    assert trusting() is None
    assert CONFIGURATION.with_authorities({"metadata": {"name": "x"}}, [ONE.certificate]) is None


def test_input_is_not_mutated() -> None:
    given = configuration(webhook("a"))
    assert CONFIGURATION.with_authorities(given, [ONE.certificate]) is not None
    assert given == configuration(webhook("a"))


def test_configurations_without_the_authority_are_found() -> None:
    both = webhook("a", caBundle=b64encode(ONE.pem + OTHER.pem).decode())
    one = webhook("b", caBundle=b64encode(ONE.pem).decode())
    theirs = webhook("theirs", ObjectKey("theirs", "hooks"))
    configurations = {CONFIGURATION: configuration(both, one, theirs)}
    assert first_without(ONE.certificate, configurations) is None
    assert first_without(OTHER.certificate, configurations) == CONFIGURATION
    assert first_without(ONE.certificate, {CONFIGURATION: configuration(webhook("a"))})
    assert first_without(ONE.certificate, {CONFIGURATION: None}) is None


def test_how_a_bundle_is_written_does_not_matter() -> None:
    trusted_bundles = trusting(webhook("a"))
    assert (
        CONFIGURATION.with_authorities(trusted_bundles, [ONE.certificate, OTHER.certificate])
        is None
    )
    with_comments = webhook("a", caBundle="")
    text = b"# one\n" + ONE.pem + b"\n# other\n" + OTHER.pem
    with_comments["clientConfig"]["caBundle"] = b64encode(text).decode()
    assert trusting(with_comments) is None
    assert (
        CONFIGURATION.with_authorities(configuration(with_comments), [ONE.certificate]) is not None
    )
