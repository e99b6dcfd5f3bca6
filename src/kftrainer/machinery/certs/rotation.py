"""Keeps a server's certificate in a Secret fresh, and those who call the server trusting it."""

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

LOOK_EVERY = 3600.0  # for what the clock alone brings about
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 30.0


class NotThereError(KubeError):
    """There is no Secret, and we may not create one."""


class CertificateRotation:
    """Looks at the Secret and the configurations whenever one of them changes; run as a service.

    Any number of replicas do this at the same time: each writes only over what it has read, and
    what it writes follows from what it has read. Ready at once; whether there is a certificate is
    for `serving.missing()` to say, and why not.
    """

    name = "certificate-rotation"

    def __init__(  # noqa: PLR0913  all that it keeps together
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
        """Keep everything in order until `stop` is set."""
        ready()
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers():
                informer.add_handler(lambda _: self._news.set())
                tasks.create_task(informer.run(lambda: None, stop), name=informer.name)
            rotating = tasks.create_task(self._rotate(), name=f"{self.name}: rotate")
            await stop.wait()
            rotating.cancel()

    def _informers(self) -> Iterator[Informer[Manifest]]:
        """They only say that something has changed: keys are not to lie about in caches."""
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
        """As `_look`, whatever goes wrong with it."""
        try:
            succeeded = await self._look()
        except Exception as error:
            # Anybody may have written what we read: it must not be able to end the whole manager.
            if self._surprise != repr(error):
                log.exception("certificate.look_failed")
            self._surprise = repr(error)
            self._serving.trouble = f"an unexpected error: {self._surprise}"
            return False
        self._surprise = None
        return succeeded

    async def _look(self) -> bool:
        """See to everything once; False if that should be tried again."""
        self._troubles.begin()
        # In this order: who sees a bundle also sees the Secret that it was made from, and so
        # nobody puts an old bundle over a new one.
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
        """Those that can be read, or that we know are not there."""
        found: dict[Injected, Manifest | None] = {}
        for each in self._configurations:
            with self._troubles.noted(f"{each} cannot be read"):
                found[each] = await self._get(each.resource, each.key)
        return found

    async def _read_secret(self) -> Manifest:
        """The Secret, or what we would create if it is not there."""
        found = await self._get(SECRETS, self._secret)
        return found if found is not None else new_secret(self._secret)

    async def _get(self, resource: Resource[Manifest], key: ObjectKey) -> Manifest | None:
        try:
            return await self._client.get(resource, key)
        except NotFoundError:
            return None

    async def _see_to(self, secret: Manifest, seen: Seen) -> Seen:
        """The configurations as they are afterwards."""
        there = {each: found for each, found in seen.items() if found is not None}
        self._take_note(self._read(secret), seen)
        stored = await self._renew(secret, there)
        self._metrics.certificate_read(usable=stored.leaf is not None)
        # What was read is history if somebody was faster: nothing must be concluded from it.
        if stored.authorities and not self._troubles.raced:
            seen = {**seen, **await self._inject(there, stored.authorities)}
            self._take_note(stored, seen)
        if stored.leaf is not None and not self._troubles.raced:
            self._show(stored.leaf)
        return seen

    def _judge(self, seen: Seen) -> None:
        """Whether those who call trust what is shown; it stays as it was if we cannot know."""
        if self._troubles.raced or self._shown is None:
            return
        distrusting = first_without(self._shown.issuer, seen)
        if distrusting is not None:
            self._serving.distrust = f"{distrusting} does not trust the certificate's authority"
        elif len(seen) == len(self._configurations):
            self._serving.distrust = None

    def _may_write(self, what: str) -> bool:
        """Whether it is time to; somebody may undo what we do as soon as it is done."""
        is_due = self._repairs.is_due(what, self._clock.monotonic())
        if not is_due:
            self._troubles.put_off()
        return is_due

    def _read(self, secret: Manifest, *bundles: bytes) -> Stored:
        also_known = [each for bundle in bundles for each in ours_in(bundle, self._identity)]
        return read(content_of(secret), self._identity, self._clock.now(), also_known)

    def _take_note(self, stored: Stored, seen: Seen) -> None:
        """What clients are told, unless we cannot know it of all of them."""
        if len(seen) == len(self._configurations):
            self._trust.saw(bundles_in(seen), stored.authorities, self._clock.monotonic())

    async def _renew(self, secret: Manifest, there: Mapping[Injected, Manifest]) -> Stored:
        """What is of use in the Secret after what had to be written."""
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
            return self._read(secret, *bundles)  # whoever is trusted stays so until it is written
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
        """The configurations as they are after these were put into those that can be written."""
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
