"""Tokens in the webhook's path, rendered by helm with and without a cluster to read."""

from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from kftrainer.devcluster.artifacts.manifests import Loader
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.machinery.webhook.path_tokens import TOKEN
from kftrainer.webhooks.registration import configuration, mutating_configuration
from tests.integration.chart.test_manager import MANAGER, configuration_in, deployment_in
from tests.support.helm import (
    CHART,
    IMAGE,
    NAME,
    NAMESPACE,
    WITHOUT_CRDS,
    Object,
    Values,
    helm,
    merged,
    named,
    notes,
    render,
)
from tests.support.releases import HelmError, Release

SECRET = f"{NAME}-webhook-path"
FIRST, SECOND = "0123456789abcdef", "fedcba9876543210"
OPEN = "The path of the webhook has no token"
FROM: Values = {"networkPolicy": {"webhookFrom": [{"ipBlock": {"cidr": "10.0.0.11/32"}}]}}

Reading = Callable[..., Awaitable[list[Object]]]


@pytest.fixture
def reading(
    helm_program: Path, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Reading:
    """Renders the chart as an installation in the namespace, by a helm that reads the cluster."""
    release = Release(helm_program, control_plane, tmp_path)

    async def rendering(values: Values | None = None) -> list[Object]:
        file = tmp_path / "given.yaml"
        file.write_text(yaml.safe_dump(merged(IMAGE, WITHOUT_CRDS, values or {})))
        flags = (f"--namespace={namespace}", "--dry-run=server", "--take-ownership")
        text = await release("template", NAME, CHART, *flags, f"--values={file}")
        return [each for each in yaml.load_all(text, Loader=Loader) if each]

    return rendering


def tokens_of(objects: list[Object]) -> list[str]:
    """The tokens that the manager accepts; the API server calls the first of them.

    Secret, configuration file, checksum and webhook configuration must agree.
    """
    secrets = [
        each for each in objects if each["kind"] == "Secret" and each["metadata"]["name"] == SECRET
    ]
    tokens = [token for each in secrets for token in each["stringData"]["tokens"].split("\n")]
    called = tokens[0] if tokens else "plain"
    found = [
        each
        for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
        for each in named(objects, kind)["webhooks"]
    ]
    own = (configuration(MANAGER, "any"), mutating_configuration(MANAGER, "any"))
    expected = [each for configured in own for each in configured["webhooks"]]
    for each, plain in zip(found, expected, strict=True):
        path = plain["clientConfig"]["service"]["path"]
        with_token = path if called == "plain" else f"{path}/{called}"
        assert each["clientConfig"]["service"]["path"] == with_token
    annotations = deployment_in(objects)["spec"]["template"]["metadata"]["annotations"]
    assert ("checksum/webhook-path" in annotations) == bool(tokens)
    assert bool(configuration_in(objects).webhook.path_token_file) == bool(tokens)
    return tokens


async def store_tokens(api: ApiClient, namespace: str, text: str) -> None:
    """Store the Secret of an earlier revision."""
    await api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": namespace},
            "data": {"tokens": b64encode(text.encode()).decode()},
        }
    )


async def store_manager(api: ApiClient, helm_program: Path, namespace: str) -> None:
    """Store the Deployment of an earlier revision."""
    objects = render(helm_program, WITHOUT_CRDS, namespace=namespace)
    await api.apply(named(objects, "Deployment"))


async def test_first_installation_has_a_random_token(reading: Reading) -> None:
    [one], [other] = tokens_of(await reading()), tokens_of(await reading())
    assert TOKEN.fullmatch(one)
    assert len(one) == 32
    assert one != other


@pytest.mark.parametrize("tokens", [[FIRST], [FIRST, SECOND, "plain"], ["plain"]])
async def test_later_revision_keeps_the_stored_tokens(
    reading: Reading, api: ApiClient, helm_program: Path, namespace: str, tokens: list[str]
) -> None:
    await store_tokens(api, namespace, "\n".join(tokens))
    await store_manager(api, helm_program, namespace)
    assert tokens_of(await reading()) == tokens
    # The checksum is the same as with tokens from the values, so pods are not replaced.
    assert await reading({"webhook": {"pathTokens": tokens}}) == await reading()


async def test_manager_without_a_token_is_not_given_one_in_one_step(
    reading: Reading, api: ApiClient, helm_program: Path, namespace: str
) -> None:
    """Its running pods would reject the new path."""
    await store_manager(api, helm_program, namespace)
    assert tokens_of(await reading()) == []


@pytest.mark.parametrize("tokens", [["plain"], [SECOND]])
async def test_tokens_of_the_values_replace_the_stored_ones(
    reading: Reading, api: ApiClient, namespace: str, tokens: list[str]
) -> None:
    await store_tokens(api, namespace, FIRST)
    assert tokens_of(await reading({"webhook": {"pathTokens": tokens}})) == tokens


async def test_no_token_is_generated_without_a_webhook(reading: Reading) -> None:
    objects = await reading({"webhook": {"enabled": False}})
    assert SECRET not in {each["metadata"]["name"] for each in objects}


@pytest.mark.parametrize("text", ["", "UPPER", f"{FIRST}\nshort"])
async def test_damaged_tokens_are_reported_instead_of_rendered(
    reading: Reading, api: ApiClient, namespace: str, text: str
) -> None:
    await store_tokens(api, namespace, text)
    with pytest.raises(HelmError, match=f"webhook.pathTokens: the Secret {SECRET}") as raised:
        await reading()
    assert FIRST not in str(raised.value)


def test_rendering_without_a_cluster_has_no_token_and_is_repeatable(helm_program: Path) -> None:
    arguments = ("template", NAME, str(CHART), "--namespace", NAMESPACE)
    one, other = (helm(helm_program, *arguments, values=IMAGE) for _ in range(2))
    assert one == other
    assert tokens_of(render(helm_program)) == []


@pytest.mark.parametrize(
    ("values", "is_open"),
    [
        ({}, True),
        (FROM, False),
        (merged(FROM, {"networkPolicy": {"enabled": False}}), True),
        (merged(FROM, {"hostNetwork": True}), True),
        ({"webhook": {"pathTokens": ["plain"]}}, False),
        ({"webhook": {"clientCA": {"secretName": "clients"}}}, False),
        ({"webhook": {"enabled": False}}, False),
    ],
    ids=["defaults", "peers", "no-policy", "on-hosts", "plain", "certificates", "no-webhook"],
)
def test_notes_report_a_webhook_that_every_pod_can_call(
    helm_program: Path, values: Values, is_open: bool
) -> None:
    assert (OPEN in notes(helm_program, values)) == is_open
