"""Rotates a server certificate in a Secret and injects its CA into webhook configurations."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random, SystemRandom

import structlog
from cryptography import x509

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ForbiddenError, KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.certs.authority import Leaf, Stored, is_better, next_content, ours_in, read
from kftrainer.machinery.certs.ca_bundle import Injected, Seen, bundles_in, first_without
from kftrainer.machinery.certs.failure_log import FailureLog
from kftrainer.machinery.certs.repairs import Repairs
from kftrainer.machinery.certs.secrets import SECRETS, content_of, new_secret, with_content
from kftrainer.machinery.certs.serving import CertificateError, ServingCertificate
from kftrainer.machinery.certs.trust import Trust
from kftrainer.machinery.certs.x509_issuing import Identity
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.queue.backoff import spread

log = structlog.get_logger(__name__)

LOOK_EVERY = 3600.0  # seconds; expiry causes no event
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 30.0


class NotThereError(KubeError):
    """The Secret does not exist and cannot be created."""


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
        configurations: Sequence[Injected],
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
        self._shown: Leaf | None = None
        self._news = asyncio.Event()
        self._troubles = FailureLog(self.name)
        self._repairs = Repairs()
        self._surprise: str | None = None

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Keep the Secret and the configurations up to date until `stop` is set."""
        ready()
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers():
                informer.add_handler(lambda _: self._news.set())
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
            self._news.clear()
            failures = 0 if await self._look_safely() else failures + 1
            await self._clock.sleep(SHORTEST_PAUSE)
            await pause(self._clock, self._until_next_look(failures), unless=self._news)

    def _until_next_look(self, failures: int) -> float:
        if failures:
            return self._jitter(min(SHORTEST_PAUSE * 2.0 ** min(failures, 10), LONGEST_PAUSE))
        now = self._clock.monotonic()
        changes = self._trust.changes_in(now), self._repairs.changes_in(now)
        return min([LOOK_EVERY, *(each for each in changes if each is not None)])

    async def _look_safely(self) -> bool:
        """Run `_look`; log unexpected errors and return False instead of raising."""
        try:
            succeeded = await self._look()
        except Exception as error:
            # The input may have been written by others; it must not be able to stop the manager.
            if self._surprise != repr(error):
                log.exception("certificate.look_failed")
            self._surprise = repr(error)
            self._serving.trouble = f"an unexpected error: {self._surprise}"
            return False
        self._surprise = None
        return succeeded

    async def _look(self) -> bool:
        """Check and repair everything once; return False if a retry is needed."""
        self._troubles.begin()
        # Configurations are read before the Secret, so the Secret is never older than the bundles,
        # and no replica replaces a new bundle with an old one.
        seen = await self._read_configurations()
        secret = None
        with self._troubles.noted(f"the Secret {self._secret} cannot be read"):
            secret = await self._read_secret()
        if secret is not None:
            seen = await self._see_to(secret, seen)
        self._judge(seen)
        for what, why in self._repairs.contested(self._clock.monotonic()):
            self._troubles.remark(f"somebody else keeps changing {what}", why)
        self._serving.trouble = self._troubles.end()
        return self._troubles.are_none

    async def _read_configurations(self) -> Seen:
        """Return the configurations that could be read; None for those that do not exist."""
        found: dict[Injected, Manifest | None] = {}
        for each in self._configurations:
            with self._troubles.noted(f"{each} cannot be read"):
                found[each] = await self._get(each.resource, each.key)
        return found

    async def _read_secret(self) -> Manifest:
        """Return the Secret, or a new empty one if it does not exist."""
        found = await self._get(SECRETS, self._secret)
        return found if found is not None else new_secret(self._secret)

    async def _get(self, resource: Resource[Manifest], key: ObjectKey) -> Manifest | None:
        try:
            return await self._client.get(resource, key)
        except NotFoundError:
            return None

    async def _see_to(self, secret: Manifest, seen: Seen) -> Seen:
        """Renew, inject and present certificates; return the configurations after the changes."""
        there = {each: found for each, found in seen.items() if found is not None}
        self._take_note(self._read(secret), seen)
        stored = await self._renew(secret, there)
        self._metrics.certificate_read(usable=stored.leaf is not None)
        # After a lost race the data is stale and must not be used.
        if stored.authorities and not self._troubles.raced:
            seen = {**seen, **await self._inject(there, stored.authorities)}
            self._take_note(stored, seen)
        if stored.leaf is not None and not self._troubles.raced:
            self._show(stored.leaf)
        return seen

    def _judge(self, seen: Seen) -> None:
        """Update whether clients trust the certificate; keep the old result if that is unknown."""
        if self._troubles.raced or self._shown is None:
            return
        distrusting = first_without(self._shown.issuer, seen)
        if distrusting is not None:
            self._serving.distrust = f"{distrusting} does not trust the certificate's authority"
        elif len(seen) == len(self._configurations):
            self._serving.distrust = None

    def _may_write(self, what: str) -> bool:
        """Return whether a write is due; others may revert each write immediately."""
        is_due = self._repairs.is_due(what, self._clock.monotonic())
        if not is_due:
            self._troubles.put_off()
        return is_due

    def _read(self, secret: Manifest, *bundles: bytes) -> Stored:
        also_known = [each for bundle in bundles for each in ours_in(bundle, self._identity)]
        return read(content_of(secret), self._identity, self._clock.now(), also_known)

    def _take_note(self, stored: Stored, seen: Seen) -> None:
        """Record which authorities clients trust, if all configurations could be read."""
        if len(seen) == len(self._configurations):
            self._trust.saw(bundles_in(seen), stored.authorities, self._clock.monotonic())

    async def _renew(self, secret: Manifest, there: Mapping[Injected, Manifest]) -> Stored:
        """Write a new Secret if one is needed; return the usable content afterwards."""
        now, told_for = self._clock.now(), self._trust.told_for(self._clock.monotonic())
        bundles = bundles_in(there)
        renewal = next_content(content_of(secret), bundles, told_for, self._identity, now)
        if renewal is None:
            return self._read(secret)
        written, what = None, f"the Secret {self._secret}"
        if self._may_write(what):
            with self._troubles.noted(f"{what} cannot be written"):
                written = await self._write(with_content(secret, renewal.content))
                self._repairs.made(what, self._clock.monotonic())
                log.info("certificate.renewed", secret=str(self._secret), because=renewal.because)
        if written is None:
            return self._read(secret, *bundles)  # keep trusting them until it is written
        return self._read(written)

    async def _write(self, secret: Manifest) -> Manifest:
        if "resourceVersion" in secret["metadata"]:
            return await self._client.update(SECRETS, secret)
        try:
            return await self._client.create(SECRETS, secret)
        except (ForbiddenError, NotFoundError) as error:
            raise NotThereError(
                f"there is none, and we cannot create one: create it, empty, or allow us to "
                f"create Secrets there ({error})"
            ) from error

    async def _inject(
        self, there: Mapping[Injected, Manifest], authorities: Sequence[x509.Certificate]
    ) -> dict[Injected, Manifest]:
        """Inject the authorities where needed; return the configurations afterwards."""
        result = dict(there)
        for each, found in there.items():
            wanted = each.trusting(found, authorities)
            if wanted is not None and self._may_write(str(each)):
                with self._troubles.noted(f"{each} cannot be written"):
                    result[each] = await self._client.update(each.resource, wanted)
                    self._repairs.made(str(each), self._clock.monotonic())
                    log.info("certificate.injected", configuration=each.name)
        return result

    def _show(self, leaf: Leaf) -> None:
        told_for = self._trust.told_for(self._clock.monotonic())
        if not is_better(leaf, self._shown, told_for, self._clock.now()):
            return
        try:
            self._serving.show(*leaf.pem())
        except CertificateError as error:
            self._troubles.note(f"the Secret {self._secret} is of no use", error)
        else:
            self._shown = leaf
