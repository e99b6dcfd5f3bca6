"""Certificates of managers that an API server calls are rotated without a failed request."""

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio
import structlog
from cryptography import x509

from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.cli.manager_setup.webhooks import AUTHORITY, ORGANIZATION
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.certs.authority import (
    CERTIFICATE,
    SETTLED_AFTER,
    Content,
    Leaf,
    Stored,
    read,
)
from kftrainer.machinery.certs.rotation import SECRETS, content_of
from kftrainer.machinery.certs.x509 import Identity
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.webhooks import registration
from tests.support.certificates import Pair, authority, content, leaf
from tests.support.load import Tally, constant_load
from tests.support.managers import FAST, ManagerProcess, manager_process
from tests.support.object_versions import version_now, versions_of
from tests.support.objects import Object, runtime, train_job
from tests.support.reviews import review
from tests.support.webhooks import (
    CONFIGURATION_PATH,
    MUTATING_PATH,
    SECRET,
    SECRET_PATH,
    SERVICE,
    AdmissionClient,
    admission_client,
    register,
    unregister,
    wait_until_called,
    webhook_flags,
)

log = structlog.get_logger(__name__)

pytestmark = pytest.mark.integration

TEST_TIMEOUT = 30.0
STARTED_WITHIN = 90.0
RATE, RATE_OF_NEW_ONES = 200.0, 40.0  # or what the machine can do
MIN_REQUESTS, MIN_NEW_CONNECTIONS = 1000, 200
MIN_REQUESTS_AFTER = 50
TIMES = "10"  # how many times faster the clock of a manager runs that waits for files
HOSTS = tuple(registration.host_names(SERVICE, DEFAULT_NAMESPACE))
IDENTITY = Identity(AUTHORITY, ORGANIZATION, HOSTS)
MERGE = "application/merge-patch+json"


@pytest_asyncio.fixture
async def ports() -> AsyncIterator[PortReservations]:
    reservations = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    yield reservations
    reservations.release_all()


@pytest_asyncio.fixture
async def unregistered(api: ApiClient) -> AsyncIterator[None]:
    """Nothing is left of other tests, nor for them."""
    await unregister(api)
    yield
    await unregister(api)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The certificates as an operator with kubectl sees them, and as the API server does."""

    api: ApiClient
    plane: ControlPlane

    async def stored(self) -> Stored:
        """What is in the Secret."""
        return read(content_of(await self.api.get(SECRET_PATH)), IDENTITY, SystemClock().now())

    async def leaf(self) -> Leaf:
        """What is to be shown."""
        found = (await self.stored()).leaf
        assert found is not None
        return found

    async def put(self, data_of: Content) -> None:
        """Put this into the Secret, as `kubectl patch secret` does."""
        data = {name: b64encode(value).decode() for name, value in data_of.items()}
        await self.api.request("PATCH", SECRET_PATH, body={"data": data}, content_type=MERGE)

    async def bundle(self) -> bytes:
        """The CA bundle that the API server trusts."""
        found = await self.api.get(CONFIGURATION_PATH)
        bundles = {each["clientConfig"].get("caBundle", "") for each in found["webhooks"]}
        assert len(bundles) == 1
        return b64decode(bundles.pop())

    async def wait_until_served(self, port: int, what: Callable[[x509.Certificate], bool]) -> None:
        """Wait until a manager shows such a certificate."""

        async def is_shown() -> bool:
            return what(await shown_at(port))

        await until(
            is_shown, within=SETTLED_AFTER + TEST_TIMEOUT, what="another certificate being shown"
        )


async def shown_at(port: int) -> x509.Certificate:
    """What a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(LOOPBACK, port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()  # a polite end may outlast the event loop
    return x509.load_der_x509_certificate(der)


async def rotate_everything(cluster: Cluster, port: int) -> None:
    """First the certificate, then the authority, as an operator might bring it about."""
    now, first = SystemClock().now(), await cluster.stored()
    assert first.issuer is not None
    assert first.ca_key is not None
    assert first.leaf is not None
    before = first.leaf.certificate
    expired = leaf(Pair(first.issuer, first.ca_key), now, -1, IDENTITY)
    await cluster.put({CERTIFICATE: expired.pem, "tls.key": expired.key_pem})
    await cluster.wait_until_served(port, lambda shown: shown != before)
    assert (await cluster.leaf()).issuer == first.issuer

    ending = authority(now, 30, IDENTITY)
    await cluster.put(content(ending, leaf(ending, now, 300, IDENTITY)))

    async def is_reissued() -> bool:
        stored = await cluster.stored()
        return (
            stored.issuer not in (first.issuer, ending.certificate, None)
            and stored.leaf is not None
            and stored.leaf.issuer == stored.issuer
        )

    await until(
        is_reissued, within=SETTLED_AFTER + TEST_TIMEOUT, what="a certificate by a new authority"
    )
    newest = (await cluster.leaf()).certificate
    await cluster.wait_until_served(port, lambda shown: shown == newest)


def job_in(namespace: str, **spec: Any) -> Object:
    job = train_job("pressed", runtimeRef={"name": "ours", "kind": "TrainingRuntime"}, **spec)
    job["metadata"]["namespace"] = namespace
    return job


def through_the_server(user: AdmissionClient, namespace: str) -> Callable[[int], Any]:
    """Dry runs of a TrainJob that is good, and now and then of one that only we refuse."""
    good = job_in(namespace)
    bad = job_in(namespace)
    bad["spec"]["runtimeRef"]["name"] = "there-is-none"

    async def send(number: int) -> str | None:
        outcome = await user.create(bad if number % 10 == 0 else good, dry_run=True)
        as_it_should = bool(outcome.denial) if number % 10 == 0 else outcome.accepted
        return None if as_it_should else f"{outcome.status} {outcome.message}"

    return send


class Caller:
    """Calls the webhook as an API server that receives new bundles with a delay."""

    def __init__(
        self, session: aiohttp.ClientSession, cluster: Cluster, port: int, namespace: str
    ) -> None:
        self._session = session
        self._cluster = cluster
        path = registration.webhook_path(TRAIN_JOBS)
        self._url = f"https://{LOOPBACK}:{port}{path}?timeout=10s"
        self._body = orjson.dumps(review(job_in(namespace), namespace=namespace))
        self._context = ssl.create_default_context()

    async def receive(self) -> None:
        """Trust the authorities in the configuration's current bundle."""
        bundle = await self._cluster.bundle()
        self._context = ssl.create_default_context(cadata=bundle.decode())

    async def listen(self) -> None:
        """Do so now and then."""
        while True:
            await asyncio.sleep(1)
            await self.receive()

    async def __call__(self, _number: int) -> str | None:
        """One review over a new connection, as after any change of the bundle."""
        try:
            async with self._session.post(
                self._url,
                data=self._body,
                headers={"Content-Type": "application/json"},
                ssl=self._context,
                server_hostname=HOSTS[0],
            ) as response:
                answer = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            return repr(error)
        return None if answer["response"]["allowed"] else repr(answer["response"])


@asynccontextmanager
async def called_manager(cluster: Cluster, port: int, *flags: str) -> AsyncIterator[ManagerProcess]:
    """A manager that the API server calls at this port."""
    await register(cluster.api, port)
    async with manager_process(cluster.plane.kubeconfig, *webhook_flags(port), *flags) as manager:
        await manager.wait_ready()
        await wait_until_called(cluster.plane)
        yield manager


@pytest.fixture
def cluster(plane: ControlPlane, api: ApiClient, unregistered: None) -> Cluster:
    return Cluster(api, plane)


@pytest_asyncio.fixture
async def with_runtime(api: ApiClient, namespace: str) -> str:
    """A namespace with a runtime."""
    manifest = runtime("ours")
    manifest["metadata"]["namespace"] = namespace
    await api.apply(manifest)
    return namespace


async def wait_until_cached(user: AdmissionClient, namespace: str) -> None:
    """Wait until the manager's cache holds the runtime."""

    async def accepted() -> bool:
        return (await user.create(job_in(namespace), dry_run=True)).accepted

    await until(accepted, within=TEST_TIMEOUT, what="the manager knowing the runtime")


def check(tally: Tally) -> None:
    log.info("pressure", came=str(tally))
    assert not tally.failures, f"{tally}; {tally.failures[:5]}"


async def test_everything_is_rotated_while_requests_run_through(
    cluster: Cluster, ports: PortReservations, with_runtime: str
) -> None:
    """Through the API server, which keeps its connections; and straight, over new ones."""
    port = ports.reserve()
    one_each = aiohttp.TCPConnector(force_close=True)
    async with (
        called_manager(cluster, port),
        admission_client(cluster.plane) as user,
        aiohttp.ClientSession(connector=one_each) as session,
    ):
        await wait_until_cached(user, with_runtime)
        caller = Caller(session, cluster, port, with_runtime)
        await caller.receive()
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(caller.listen())
            async with (
                constant_load(through_the_server(user, with_runtime), RATE) as through,
                constant_load(caller, RATE_OF_NEW_ONES) as straight,
            ):
                await rotate_everything(cluster, port)
                await more_of(through, MIN_REQUESTS)
                await more_of(straight, MIN_NEW_CONNECTIONS)
            listening.cancel()
    check(through)
    check(straight)


async def more_of(tally: Tally, in_all: int) -> None:
    """Wait for enough requests with the certificate served now, and for `in_all` in total."""
    wanted = max(in_all, len(tally.seconds) + MIN_REQUESTS_AFTER)

    async def enough() -> bool:
        return len(tally.seconds) >= wanted

    await until(enough, within=2 * TEST_TIMEOUT, what=f"{wanted} requests")


async def test_managers_that_start_together_share_one_certificate(
    cluster: Cluster, ports: PortReservations
) -> None:
    since = await version_now(cluster.api)
    addresses = [ports.reserve(), ports.reserve()]
    await register(cluster.api, addresses[0])
    async with AsyncExitStack() as stack:
        managers = [
            await stack.enter_async_context(
                manager_process(cluster.plane.kubeconfig, *webhook_flags(port))
            )
            for port in addresses
        ]
        for manager in managers:
            await manager.wait_ready()
        first, second = [await shown_at(port) for port in addresses]
        assert first == second == (await cluster.leaf()).certificate
        for port in addresses:
            await register(cluster.api, port)
            await wait_until_called(cluster.plane)
    key = ObjectKey(DEFAULT_NAMESPACE, SECRET)
    written = await versions_of(cluster.plane.kubeconfig, SECRETS, key, since)
    assert len({each["data"][CERTIFICATE] for each in written}) == 1
    warnings = [
        entry for each in managers for entry in each.log_entries("certificate_failure_started")
    ]
    assert warnings == []


CONFIGURATION = """\
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
certManagement:
  enable: false
"""


class Volume:
    """A folder as the kubelet makes it of a Secret: replaced as a whole, by renaming a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0

    def publish(self, certificate: bytes, key: bytes) -> None:
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir(parents=True)
        for name, pem in (("tls.crt", certificate), ("tls.key", key)):
            (version / name).write_bytes(pem)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")


async def trust(cluster: Cluster, *authorities: Pair) -> None:
    """Write the CA bundle into the configurations, as cert-manager does."""
    bundle = b64encode(b"".join(each.pem for each in authorities)).decode()
    for path in (CONFIGURATION_PATH, MUTATING_PATH):
        found = await cluster.api.get(path)
        for each in found["webhooks"]:
            each["clientConfig"]["caBundle"] = bundle
        await cluster.api.request("PUT", path, body=found)


async def test_certificates_of_others_are_picked_up_when_they_are_replaced(
    cluster: Cluster, ports: PortReservations, tmp_path: Path
) -> None:
    now, port, volume = SystemClock().now(), ports.reserve(), Volume(tmp_path / "certificates")
    (tmp_path / "configuration.yaml").write_text(CONFIGURATION)
    flags = (
        *("--config", str(tmp_path / "configuration.yaml")),
        *("--webhook-cert-dir", str(volume.folder)),
    )
    one, other = authority(now, identity=IDENTITY), authority(now, identity=IDENTITY)
    await register(cluster.api, port)
    await trust(cluster, one)
    program = (*FAST, TIMES)  # it checks the files every ten seconds
    async with manager_process(
        cluster.plane.kubeconfig, *webhook_flags(port), *flags, program=program
    ) as manager:

        async def was_logged(event: str) -> bool:
            return bool(manager.log_entries(event))

        await until(
            lambda: was_logged("certificate_missing"),
            within=STARTED_WITHIN,
            what="waiting for files",
        )
        shown = leaf(one, now, identity=IDENTITY)
        volume.publish(shown.pem, shown.key_pem)
        await manager.wait_ready()
        await wait_until_called(cluster.plane)
        assert await shown_at(port) == shown.certificate

        volume.publish(leaf(one, now, identity=IDENTITY).pem, shown.key_pem)
        await until(
            lambda: was_logged("certificate_not_reloaded"),
            within=TEST_TIMEOUT,
            what="a pair of no use",
        )
        assert await shown_at(port) == shown.certificate

        newer = leaf(other, now, identity=IDENTITY)
        await trust(cluster, one, other)
        volume.publish(newer.pem, newer.key_pem)
        await cluster.wait_until_served(port, lambda found: found == newer.certificate)
        await trust(cluster, other)
        await wait_until_called(cluster.plane)
        assert "PRIVATE KEY" not in manager.log_text()
    assert await cluster.api.get_or_none(SECRET_PATH) is None, (
        "no certificate of the manager was needed"
    )
