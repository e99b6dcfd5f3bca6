"""Certificates in a Secret of a real API server, through all that may happen to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.certs import authority as authority_module
from kftrainer.machinery.certs.authority import (
    CA_CERTIFICATE,
    CA_KEY,
    CERTIFICATE,
    KEY,
    SETTLED_AFTER,
    Content,
    read,
)
from kftrainer.machinery.certs.rotation import SECRETS
from kftrainer.machinery.certs.x509 import certificates_in
from kftrainer.machinery.manager.clock import SystemClock
from tests.integration.machinery.certificate_replicas import (
    SECRET,
    TEST_TIMEOUT,
    Replica,
    Site,
    replica,
)
from tests.support.certificates import Pair, authority, content, leaf
from tests.support.fast_clock import FastClock
from tests.support.object_versions import version_now, versions_of
from tests.support.odd_certificates import ODD

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def site(api: ApiClient, namespace: str) -> AsyncIterator[Site]:
    """A configuration without a bundle, and no Secret."""
    site = Site(api, namespace)
    await site.register()
    yield site
    await site.unregister()


class TestTheFirstStart:
    async def test_missing_secret_is_created(self, site: Site, control_plane: ControlPlane) -> None:
        async with replica(site, control_plane.kubeconfig) as one:
            await one.wait_ready()
            assert await one.is_trusted()
            assert one.serving.missing() is None
        held = await site.content()
        assert sorted(held) == [CA_CERTIFICATE, CA_KEY, CERTIFICATE, KEY]

    async def test_with_an_empty_secret_fills_it(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        await site.put_secret({})
        uid = (await site.api.get(site.secret_path))["metadata"]["uid"]
        async with replica(site, control_plane.kubeconfig) as one:
            await one.wait_ready()
            assert await one.is_trusted()
        assert (await site.api.get(site.secret_path))["metadata"]["uid"] == uid

    @pytest.mark.parametrize("exists", [False, True], ids=["no secret", "empty secret"])
    async def test_concurrent_replicas_create_one_pair(
        self, site: Site, control_plane: ControlPlane, exists: bool
    ) -> None:
        since = await version_now(site.api)
        if exists:
            await site.put_secret({})
        async with AsyncExitStack() as stack:
            several = [
                await stack.enter_async_context(replica(site, control_plane.kubeconfig))
                for _ in range(4)
            ]
            for each in several:
                await each.wait_ready()
                assert await each.is_trusted()
            assert len({await each.shown() for each in several}) == 1
        key = ObjectKey(site.namespace, SECRET)
        written = await versions_of(control_plane.kubeconfig, SECRETS, key, since)
        pairs = {each["data"][CERTIFICATE] for each in written if each.get("data")}
        assert len(pairs) == 1

    async def test_second_start_uses_the_existing_secret(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        async with replica(site, control_plane.kubeconfig) as one:
            await one.wait_ready()
            first = await one.shown()
        version = (await site.api.get(site.secret_path))["metadata"]["resourceVersion"]
        async with replica(site, control_plane.kubeconfig) as one:
            await one.wait_ready()
            assert await one.shown() == first
        assert (await site.api.get(site.secret_path))["metadata"]["resourceVersion"] == version


CLOCK = SystemClock()


def pair_of(pair: Pair) -> Content:
    return {CERTIFICATE: pair.pem, KEY: pair.key_pem}


def expired(site: Site) -> Content:
    old = authority(CLOCK.now(), -1, site.identity)
    return content(old, leaf(old, CLOCK.now(), 30, site.identity))


EVERYTHING = (CA_CERTIFICATE, CA_KEY, CERTIFICATE, KEY)
GARBAGE = b"-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n"
Damage = Callable[[Pair, Site], Content]
DAMAGES: dict[str, Damage] = {
    "everything gone": lambda _ca, _: dict.fromkeys(EVERYTHING, b""),
    "garbage everywhere": lambda _ca, _: dict.fromkeys(EVERYTHING, GARBAGE),
    "authority of an odd version": lambda _ca, _: {CA_CERTIFICATE: ODD["an odd version"]},
    "certificate with an odd name": lambda _ca, _: {CERTIFICATE: ODD["an odd name"]},
    "garbage certificate": lambda _ca, _: {CERTIFICATE: b"garbage"},
    "garbage authority": lambda _ca, _: {CA_CERTIFICATE: b"garbage"},
    "wrong key": lambda ca, site: {KEY: leaf(ca, CLOCK.now(), identity=site.identity).key_pem},
    "no key": lambda _ca, _: {KEY: b""},
    "no authority's key": lambda _ca, _: {CA_KEY: b""},
    "expired certificate": lambda ca, site: pair_of(leaf(ca, CLOCK.now(), -1, site.identity)),
    "certificate for others": lambda ca, _: pair_of(leaf(ca, CLOCK.now())),
    "expired authority": lambda _ca, site: expired(site),
}


def authority_in(held: Content) -> Pair:
    stored = read(held, Site(None, "").identity, CLOCK.now())  # type: ignore[arg-type]
    assert stored.issuer is not None
    assert stored.ca_key is not None
    return Pair(stored.issuer, stored.ca_key)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_damaged_secret_is_repaired_at_once(
    site: Site, control_plane: ControlPlane, damage: Damage
) -> None:
    async with replica(site, control_plane.kubeconfig) as one:
        await one.wait_ready()
        held = await site.content()
        await site.put_secret({**held, **damage(authority_in(held), site)})

        async def repaired() -> bool:
            return await site.is_healthy(one.clock)

        await until(repaired, within=TEST_TIMEOUT, what="the Secret being good again")
        assert await one.is_trusted(), "what was shown before, or what came after"
    async with replica(site, control_plane.kubeconfig) as another:
        await another.wait_ready()
        assert await another.is_trusted()


async def test_a_secret_that_was_damaged_before_the_start_is_repaired(
    site: Site, control_plane: ControlPlane
) -> None:
    await site.put_secret(DAMAGES["garbage everywhere"](authority(CLOCK.now()), site))
    async with replica(site, control_plane.kubeconfig) as one:
        await one.wait_ready()
        assert await one.is_trusted()


async def test_deleted_secret_is_recreated_without_failed_calls(
    site: Site, control_plane: ControlPlane
) -> None:
    async with replica(site, control_plane.kubeconfig) as one:
        await one.wait_ready()
        before = await one.shown()
        await site.api.delete(site.secret_path)

        async def back() -> bool:
            return await site.is_healthy(one.clock)

        await until(back, within=TEST_TIMEOUT, what="the Secret coming back")
        assert await one.shown() == before
        assert await one.is_trusted()


class TestTheBundle:
    async def test_is_restored_when_another_client_removes_it(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        async with replica(site, control_plane.kubeconfig) as one:
            await one.wait_ready()
            for _ in range(3):
                await site.register()  # as `helm upgrade` does, with none in the manifest
                await one.wait_ready()
            assert await one.is_trusted()

    async def test_is_written_into_a_configuration_created_later(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        await site.unregister()
        async with replica(site, control_plane.kubeconfig) as one:

            async def shown() -> bool:
                return one.serving.missing() is None

            await until(shown, within=TEST_TIMEOUT, what="a certificate with no configuration")
            await site.register()
            await one.wait_ready()
            assert await one.is_trusted()
            await site.unregister()
            await site.register()
            await one.wait_ready()

    async def test_of_another_webhook_is_not_modified(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        await site.register(site.webhook("third", "another-service"))
        before = await site.webhooks()
        async with replica(site, control_plane.kubeconfig) as one:
            await one.wait_ready()
            after = await site.webhooks()
        for ours in after[:2]:
            assert ours["clientConfig"].pop("caBundle")
        assert after == before


TIMES = 50.0
OVERLAP = 900.0


@pytest.fixture
def short_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an hour, for which time would have to run so fast that few looks are quick enough."""
    monkeypatch.setattr(authority_module, "OVERLAP", OVERLAP)


class ServingObserver:
    """Looks at every replica all the time, as the API server does when it calls.

    A check that takes too long is ignored: the bundle may be outdated by then.
    """

    def __init__(self, replicas: list[Replica], settled_after: float) -> None:
        self._replicas = replicas
        self._settled_after = settled_after
        self.checks = 0
        self.untrusted: list[int] = []
        self.not_ready: list[str] = []

    async def __call__(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            for number, each in enumerate(self._replicas):
                missing = each.serving.missing()
                self.not_ready += [] if missing is None else [missing]
                began = now()
                is_trusted = await each.is_trusted()
                if now() - began < self._settled_after:
                    self.checks += 1
                    self.untrusted += [] if is_trusted else [number]


async def observed(observer: ServingObserver, action: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(observer())
        await action()
        watching.cancel()


@pytest.mark.usefixtures("short_overlap")
async def test_an_authority_is_replaced_and_is_trusted_all_the_time(
    site: Site, control_plane: ControlPlane
) -> None:
    clock = FastClock(TIMES)
    old = authority(clock.now(), 400, site.identity)
    await site.put_secret(content(old, leaf(old, clock.now(), 200, site.identity)))
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(replica(site, control_plane.kubeconfig, clock))
            for _ in range(2)
        ]
        for each in replicas:
            await until(
                each.is_trusted, within=TEST_TIMEOUT, what="the old certificate being trusted"
            )
        observer = ServingObserver(replicas, settled_after=SETTLED_AFTER / TIMES)
        stages: list[int] = []

        async def rotated() -> None:
            async def alone() -> bool:
                found = certificates_in((await site.content())[CA_CERTIFICATE])
                stages.append(len(found))
                return old.certificate not in found

            within = TEST_TIMEOUT + (OVERLAP + SETTLED_AFTER) / TIMES
            await until(alone, within=within, what="the old authority having gone")
            for each in replicas:
                await each.wait_ready()

        await observed(observer, rotated)
        shown = {await each.shown() for each in replicas}
    assert (observer.untrusted, observer.not_ready, observer.checks > 20) == ([], [], True)
    assert set(stages) == {1, 2}
    assert len(shown) == 1


RULES = [
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [SECRET],
        "verbs": ["get", "list", "watch", "update", "patch"],
    },
]


async def permit(site: Site, user: str, *verbs: str) -> None:
    """The rights that a chart gives, which name the objects; or less, for configurations."""
    configurations = {
        **RULES[0],
        "verbs": verbs or RULES[0]["verbs"],
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["validatingwebhookconfigurations"],
        "resourceNames": [site.configuration],
    }
    name = {"metadata": {"name": f"rotation-{site.namespace}"}}
    api_version = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    await site.api.apply(
        {**api_version, "kind": "ClusterRole", **name, "rules": [*RULES, configurations]}
    )
    await site.api.apply(
        {
            **api_version,
            "kind": "ClusterRoleBinding",
            **name,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": name["metadata"]["name"],
            },
            "subjects": [{"kind": "User", "name": user}],
        }
    )
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": user,
            "resourceAttributes": {
                "namespace": site.namespace,
                "resource": "secrets",
                "name": SECRET,
                "verb": "watch",
            },
        },
    }

    async def known() -> bool:
        return bool((await site.api.create(question))["status"]["allowed"])

    await until(known, within=TEST_TIMEOUT, what="the API server knowing these rights")


class TestWithFewRights:
    async def test_the_two_objects_by_name_are_enough(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        user = f"rotator-of-{site.namespace}"
        await permit(site, user)
        await site.put_secret({})
        with capture_logs() as logs:
            async with replica(site, control_plane.kubeconfig_for(user)) as one:
                await one.wait_ready()
                await site.register()
                await one.wait_ready()
                assert await one.is_trusted()
        assert [entry for entry in logs if entry["log_level"] == "warning"] == []

    async def test_it_is_not_ready_as_long_as_the_api_server_does_not_trust_it(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        user = f"rotator-of-{site.namespace}"
        await permit(site, user, "get", "list", "watch")
        await site.put_secret({})
        async with replica(site, control_plane.kubeconfig_for(user)) as one:

            async def is_reported() -> bool:
                return "does not trust the certificate's authority" in (one.serving.missing() or "")

            await until(
                is_reported, within=TEST_TIMEOUT, what="the untrusted certificate being reported"
            )
            assert await one.shown() is not None
            await permit(site, user)

            async def ready() -> bool:
                return one.serving.missing() is None

            # Its pauses have not grown for long.
            await until(ready, within=TEST_TIMEOUT, what="the API server trusting it")
            assert await one.is_trusted()

    async def test_forbidden_creation_of_the_secret_is_reported(
        self, site: Site, control_plane: ControlPlane
    ) -> None:
        user = f"rotator-of-{site.namespace}"
        await permit(site, user)
        async with replica(site, control_plane.kubeconfig_for(user)) as one:

            async def is_reported() -> bool:
                return "cannot be created" in (one.serving.missing() or "")

            await until(is_reported, within=TEST_TIMEOUT, what="the failure being reported")
            assert await one.shown() is None
            await site.put_secret({})
            await one.wait_ready()


async def test_no_private_key_is_ever_logged(site: Site, control_plane: ControlPlane) -> None:
    keys: set[bytes] = set()
    with capture_logs() as logs:
        async with replica(site, control_plane.kubeconfig) as one:
            await one.wait_ready()
            for damage in ("wrong key", "garbage everywhere"):
                held = await site.content()
                keys |= {held[CA_KEY], held[KEY]}
                await site.put_secret({**held, **DAMAGES[damage](authority_in(held), site)})
                await until(
                    lambda: site.is_healthy(one.clock),
                    within=TEST_TIMEOUT,
                    what="the Secret being good",
                )
        held = await site.content()
        keys |= {held[CA_KEY], held[KEY]}
    text = repr(logs)
    assert "certificate_renewed" in text
    assert "PRIVATE KEY" not in text
    for key in keys:
        for line in key.decode().splitlines()[1:-1]:
            assert line not in text
