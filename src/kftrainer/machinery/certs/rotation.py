"""Rotates a server certificate in a Secret and injects its CA into webhook configurations."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random, SystemRandom

import structlog
from cryptography import x509

from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
)
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.certs.authority import (
    Content,
    Leaf,
    Stored,
    Trust,
    is_better,
    next_content,
    ours_in,
    read,
)
from kftrainer.machinery.certs.ca_bundle import (
    ManagedConfiguration,
    ReadConfigurations,
    bundles_in,
    first_without,
)
from kftrainer.machinery.certs.serving import CertificateError, ServingCertificate
from kftrainer.machinery.certs.x509 import Identity
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.queue.backoff import spread
from kftrainer.machinery.queue.repair_backoff import RepairBackoff

log = structlog.get_logger(__name__)

SECRETS: Resource[Manifest] = Resource(
    "", "v1", "Secret", "secrets", namespaced=True, decode=unstructured
)
CHECK_EVERY = 3600.0  # seconds; expiry causes no event
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
# Between repairs that another client reverts. The first ones follow quickly: a repair costs
# little, and a missing certificate costs more.
FIRST_REPAIR, LONGEST_REPAIR = 0.1, 300.0
REPORTED_AFTER = 5  # repairs in a row
# The object was changed, created or deleted by others since it was read.
LOST_RACE = (ConflictError, AlreadyExistsError, NotFoundError)


class SecretMissingError(KubeError):
    """The Secret does not exist and cannot be created."""


def new_secret(key: ObjectKey) -> Manifest:
    """Return an empty Secret."""
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "type": "Opaque",
    }


def content_of(secret: Manifest) -> Content:
    """Return the decoded data of a Secret."""
    return {name: b64decode(value or "") for name, value in (secret.get("data") or {}).items()}


def with_content(secret: Manifest, content: Content) -> Manifest:
    """Return the Secret with this content merged into its data."""
    encoded = {name: b64encode(value).decode() for name, value in content.items()}
    return {**secret, "data": {**(secret.get("data") or {}), **encoded}}


class FailureLog:
    """The failures of a repeated check; each is logged once when it starts and when it ends.

    Call `begin` and `end` around each check.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._current: dict[str, str] = {}
        self._is_complete = True
        self.lost_race = False  # another writer was faster, which is not a failure

    @property
    def is_done(self) -> bool:
        """Whether the check is complete and need not be repeated."""
        return self._is_complete and not self.lost_race

    def begin(self) -> None:
        """Start a check."""
        self._current, self._is_complete, self.lost_race = {}, True, False

    @contextmanager
    def recording(self, what: str) -> Iterator[None]:
        """Record API errors of the block instead of raising them."""
        try:
            yield
        except LOST_RACE:
            self.lost_race = True
        except KubeError as error:
            self.retry(what, error)

    def retry(self, what: str, error: Exception) -> None:
        """Record a failure that is to be retried."""
        self.report(what, str(error))
        self.postpone()

    def report(self, what: str, why: str) -> None:
        """Record a problem for which a retry does not help."""
        self._current[what] = why

    def postpone(self) -> None:
        """Require another check without recording a failure."""
        self._is_complete = False

    def end(self) -> str | None:
        """Log what started and what ended; return all failures in one line, or None."""
        for what, error in self._current.items():
            if what not in self._logged:
                log.warning("certificate_failure_started", failure=what, error=error)
        for what in self._logged - set(self._current):
            log.info("certificate_failure_ended", failure=what)
        self._logged = set(self._current)
        return "; ".join(f"{what}: {error}" for what, error in self._current.items()) or None


class CertificateRotation:
    """Checks the Secret and the webhook configurations whenever one changes; a Runnable.

    All replicas run it concurrently: writes depend only on what was read and are guarded by the
    resourceVersion. It is ready at once; `serving.missing()` reports whether a certificate is
    missing and why.
    """

    name = "certificate-rotation"

    def __init__(  # noqa: PLR0913  all independent collaborators
        self,
        client: Client,
        serving: ServingCertificate,
        *,
        secret: ObjectKey,
        identity: Identity,
        configurations: Sequence[ManagedConfiguration],
        clock: Clock,
        metrics: Metrics,
        rng: Random | None = None,
    ) -> None:
        self._client = client
        self._serving = serving
        self._secret = secret
        self._identity = identity
        self._configurations = tuple(configurations)
        self._clock = clock
        self._metrics = metrics
        self._trust = Trust()
        self._jitter = spread(rng if rng is not None else SystemRandom())
        self._presented: Leaf | None = None
        self._changed = asyncio.Event()
        self._failures = FailureLog()
        self._repairs = RepairBackoff[str](clock, first=FIRST_REPAIR, longest=LONGEST_REPAIR)
        self._unexpected: str | None = None

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Keep the Secret and the configurations up to date until `stop` is set."""
        ready()
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers():
                informer.add_handler(lambda _: self._changed.set())
                tasks.create_task(informer.run(lambda: None, stop), name=informer.name)
            rotating = tasks.create_task(self._rotate(), name=f"{self.name}: rotate")
            await stop.wait()
            rotating.cancel()

    def _informers(self) -> Iterator[Informer[Manifest]]:
        """Yield informers that only signal changes; they cache no keys, only metadata."""
        watched = [
            (SECRETS, self._secret),
            *((each.resource, each.key) for each in self._configurations),
        ]
        for resource, key in watched:
            yield Informer(
                self._client,
                resource.only_metadata(),
                clock=self._clock,
                namespace=key.namespace or None,
                field_selector=f"metadata.name={key.name}",
            )

    async def _rotate(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            failures = 0 if await self._check_safely() else failures + 1
            await self._clock.sleep(SHORTEST_PAUSE)
            await pause(self._clock, self._until_next_check(failures), stop=self._changed)

    def _until_next_check(self, failures: int) -> float:
        if failures:
            return self._jitter(min(SHORTEST_PAUSE * 2.0 ** min(failures, 10), LONGEST_PAUSE))
        trust_changes_in = self._trust.changes_in(self._clock.monotonic())
        ends = [each.resets_in for each in self._repairs.repeated(REPORTED_AFTER).values()]
        return min([CHECK_EVERY, *ends, *([trust_changes_in] if trust_changes_in else [])])

    async def _check_safely(self) -> bool:
        """Run `_check`; log unexpected errors and return False instead of raising."""
        try:
            succeeded = await self._check()
        except Exception as error:
            # The input may have been written by others; it must not be able to stop the manager.
            if self._unexpected != repr(error):
                log.exception("certificate_check_failed")
            self._unexpected = repr(error)
            self._serving.failure = f"an unexpected error: {self._unexpected}"
            return False
        self._unexpected = None
        return succeeded

    async def _check(self) -> bool:
        """Check and repair everything once; return False if a retry is needed."""
        self._failures.begin()
        # Configurations are read before the Secret, so the Secret is never older than the bundles,
        # and no replica replaces a new bundle with an old one.
        seen = await self._read_configurations()
        secret = None
        with self._failures.recording(f"the Secret {self._secret} cannot be read"):
            secret = await self._read_secret()
        if secret is not None:
            seen = await self._maintain(secret, seen)
        self._update_trust(seen)
        for what, repeats in self._repairs.repeated(REPORTED_AFTER).items():
            why = f"repaired {repeats.times} times, the next time after {repeats.next_pause:.0f} s"
            self._failures.report(f"another client keeps changing {what}", why)
        self._serving.failure = self._failures.end()
        return self._failures.is_done

    async def _read_configurations(self) -> ReadConfigurations:
        """Return the configurations that could be read; None for those that do not exist."""
        found: dict[ManagedConfiguration, Manifest | None] = {}
        for each in self._configurations:
            with self._failures.recording(f"{each} cannot be read"):
                found[each] = await self._get(each.resource, each.key)
        return found

    async def _read_secret(self) -> Manifest:
        """Return the Secret, or a new empty one if it does not exist."""
        found = await self._get(SECRETS, self._secret)
        return found if found is not None else new_secret(self._secret)

    async def _get(self, resource: Resource[Manifest], key: ObjectKey) -> Manifest | None:
        return await get_or_none(self._client, resource, key, kind_may_be_missing=True)

    async def _maintain(self, secret: Manifest, seen: ReadConfigurations) -> ReadConfigurations:
        """Renew, inject and present certificates; return the configurations after the changes."""
        existing = {each: found for each, found in seen.items() if found is not None}
        self._observe_trust(self._read(secret), seen)
        stored = await self._renew(secret, existing)
        self._metrics.certificate_read(usable=stored.leaf is not None)
        # After a lost race the data is stale and must not be used.
        if stored.authorities and not self._failures.lost_race:
            seen = {**seen, **await self._inject(existing, stored.authorities)}
            self._observe_trust(stored, seen)
        if stored.leaf is not None and not self._failures.lost_race:
            self._present(stored.leaf)
        return seen

    def _update_trust(self, seen: ReadConfigurations) -> None:
        """Update whether clients trust the certificate; keep the old result if that is unknown."""
        if self._failures.lost_race or self._presented is None:
            return
        without = first_without(self._presented.issuer, seen)
        if without is not None:
            self._serving.untrusted_because = (
                f"{without} does not trust the certificate's authority"
            )
        elif len(seen) == len(self._configurations):
            self._serving.untrusted_because = None

    def _may_write(self, what: str) -> bool:
        """Return whether a write is due; others may revert each write immediately."""
        is_due = self._repairs.pause(what) == 0
        if not is_due:
            self._failures.postpone()
        return is_due

    def _read(self, secret: Manifest, *bundles: bytes) -> Stored:
        also_known = [each for bundle in bundles for each in ours_in(bundle, self._identity)]
        return read(content_of(secret), self._identity, self._clock.now(), also_known)

    def _observe_trust(self, stored: Stored, seen: ReadConfigurations) -> None:
        """Record which authorities clients trust, if all configurations could be read."""
        if len(seen) == len(self._configurations):
            self._trust.observe(bundles_in(seen), stored.authorities, self._clock.monotonic())

    async def _renew(
        self, secret: Manifest, existing: Mapping[ManagedConfiguration, Manifest]
    ) -> Stored:
        """Write a new Secret if one is needed; return the usable content afterwards."""
        now, trusted_for = self._clock.now(), self._trust.trusted_for(self._clock.monotonic())
        bundles = bundles_in(existing)
        renewal = next_content(content_of(secret), bundles, trusted_for, self._identity, now)
        written, what = None, f"the Secret {self._secret}"
        if renewal is None:
            self._repairs.record_unchanged(what)
            return self._read(secret)
        if self._may_write(what):
            with self._failures.recording(f"{what} cannot be written"):
                written = await self._write(with_content(secret, renewal.content))
                self._repairs.record_write(what)
                log.info("certificate_renewed", secret=str(self._secret), because=renewal.because)
        if written is None:
            return self._read(secret, *bundles)  # keep trusting them until it is written
        return self._read(written)

    async def _write(self, secret: Manifest) -> Manifest:
        if "resourceVersion" in secret["metadata"]:
            return await self._client.update(SECRETS, secret)
        try:
            return await self._client.create(SECRETS, secret)
        except (ForbiddenError, NotFoundError) as error:
            raise SecretMissingError(
                f"it does not exist and cannot be created: create it, empty, or allow the manager "
                f"to create Secrets in this namespace ({error})"
            ) from error

    async def _inject(
        self,
        existing: Mapping[ManagedConfiguration, Manifest],
        authorities: Sequence[x509.Certificate],
    ) -> dict[ManagedConfiguration, Manifest]:
        """Inject the authorities where needed; return the configurations afterwards."""
        result = dict(existing)
        for each, found in existing.items():
            wanted = each.with_authorities(found, authorities)
            if wanted is None:
                self._repairs.record_unchanged(str(each))
            elif self._may_write(str(each)):
                with self._failures.recording(f"{each} cannot be written"):
                    result[each] = await self._client.update(each.resource, wanted)
                    self._repairs.record_write(str(each))
                    log.info("ca_bundle_injected", configuration=each.name)
        return result

    def _present(self, leaf: Leaf) -> None:
        trusted_for = self._trust.trusted_for(self._clock.monotonic())
        if not is_better(leaf, self._presented, trusted_for, self._clock.now()):
            return
        try:
            self._serving.present(*leaf.pem())
        except CertificateError as error:
            self._failures.retry(f"the Secret {self._secret} cannot be used", error)
        else:
            self._presented = leaf
