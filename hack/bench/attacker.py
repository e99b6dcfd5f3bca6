"""The attacker of `bench.attack`: a tenant with the chart's edit role, in a process of its own.

It sends everything that such a tenant can send, a bounded number of requests at a time: TrainJobs
at the limits that are stored, updated and created in dry runs, TrainJobs and runtimes beyond the
limits, runtimes that it has no right to create, and reviews straight to the webhook's port. Each
request has a class, and the answers are counted by it: an attack of which nothing is accepted
would prove nothing.
"""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from bench.hostile import FOUND, KNOWN, review
from bench.hostile_objects import Attack, Objects, objects_of, within_limits
from bench.memory import job_at_the_limit
from bench.whole_manager import WEBHOOK_PORT
from kftrainer.api import names
from kftrainer.api.resources import TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import ForbiddenError, KubeError
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.webhooks.registration import webhook_path

POD_ADDRESS = "127.0.0.2"  # of the attacker: a pod does not have the API server's address
STORED_AT_A_TIME = 150  # TrainJobs of the attacker
LONGEST_REVIEW = 3 * 2**20  # bytes, as of the API server
TURNS = 2

# Rows of a TrainJob alone, next to those of the table and to what searches have found.
ALONE: Mapping[str, Attack] = {
    "6k variables with divisors": Attack(trainer_env=6_000, env_kind=1, quantities=1),
    "4k resources": Attack(trainer_resources=4_000, quantities=1),
    "one argument of 1.3 MB": Attack(padding=1_300_000),
    "50k arguments": Attack(args=50_000),
    "10k labels": Attack(job_labels=10_000),
    "overrides of 100 jobs": Attack(jobs=100, overrides=4, targets=100, override_labels=1),
}
ALL_BYTES = "all bytes and values of the limits"
# At any size, quantities are out of the API server's range, or the merge takes too long.
NEVER_ADMITTED = ("distinct quantities of 991 places", "100 overrides of 100 jobs")

# Classes of requests.
STORED, DRY_RUN, UPDATED = "stored", "dry run", "updated"
REJECTED, FORBIDDEN, DIRECT = "rejected", "forbidden", "answered at the port"
CLASSES = (STORED, DRY_RUN, UPDATED, REJECTED, FORBIDDEN, DIRECT)
CLASSES_OF_CONTROL = (STORED, DRY_RUN, UPDATED, REJECTED, FORBIDDEN)
FAILED = "failed"


@dataclass(frozen=True)
class Row:
    """One kind of attack: within the limits, once for each turn, and beyond them."""

    name: str
    within: Sequence[Objects]
    beyond: Objects

    @property
    def must_be_stored(self) -> bool:
        """Whether an attack without this row is incomplete."""
        return self.name in {*KNOWN, *ALONE, ALL_BYTES} - {*NEVER_ADMITTED}


@cache
def rows() -> Sequence[Row]:
    """Return everything that is sent."""
    attacks = {**KNOWN, **ALONE, **{f"found {n}": each for n, each in enumerate(FOUND)}}
    found = [
        Row(
            name,
            [objects_of(within_limits(attack), turn=turn) for turn in range(TURNS)],
            objects_of(attack, turn=TURNS),
        )
        for name, attack in attacks.items()
    ]
    plain, largest = objects_of(Attack()), job_at_the_limit("hostile", "tenant")
    many_words = objects_of(Attack(args=50_000, padding=800_000))
    return (*found, Row(ALL_BYTES, [replace(plain, new=largest)] * TURNS, many_words))


def runtime_name(index: int) -> str:
    """Return the name of a row's runtime in the attacker's namespace."""
    return f"row-{index}"


def runtime_in(namespace: str, index: int, manifest: Manifest) -> dict[str, Any]:
    """Return the runtime of a row as a TrainingRuntime of the namespace."""
    name = {"name": runtime_name(index), "namespace": namespace}
    head = {"apiVersion": TRAINING_RUNTIMES.api_version, "kind": TRAINING_RUNTIMES.kind}
    return {**manifest, **head, "metadata": {**_written(manifest), **name}}


def job_in(namespace: str, name: str, index: int, manifest: Manifest) -> dict[str, Any]:
    """Return the TrainJob of a row, on the row's runtime in the namespace."""
    reference = {"name": runtime_name(index), "kind": names.TRAINING_RUNTIME}
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.kind,
        "metadata": {**_written(manifest), "name": name, "namespace": namespace},
        "spec": {**manifest["spec"], "runtimeRef": reference},
    }


def _written(manifest: Manifest) -> dict[str, Any]:
    """Return the metadata that clients write."""
    metadata = manifest["metadata"]
    return {key: metadata[key] for key in ("labels", "annotations") if key in metadata}


@dataclass(frozen=True)
class Target:
    """The information that the attacker has."""

    kubeconfig: Path
    namespace: str


@dataclass(frozen=True)
class Pace:
    """How fast the attacker is."""

    rate: float  # requests a second
    at_a_time: int


@dataclass
class Tally:
    """How the requests were answered."""

    classes: Counter[str] = field(default_factory=Counter)
    stored_rows: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # of those that failed
    sent: int = 0

    def to_json(self) -> str:
        """Return the tally for another process."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Tally":
        """Read the tally of another process."""
        read = json.loads(text)
        counters = {key: Counter(read[key]) for key in ("classes", "stored_rows", "errors")}
        return cls(**counters, sent=read["sent"])

    def missing(self, classes: Sequence[str]) -> list[str]:
        """Return the classes that have no request."""
        return [each for each in classes if not self.classes[each]]


class Attacker:
    """Sends requests at a rate, a bounded number at a time, and counts the answers."""

    def __init__(
        self,
        client: Client,
        web: aiohttp.ClientSession,
        target: Target,
        kind: Resource[Any] = TRAIN_JOBS,
    ) -> None:
        self._kind = kind
        self._is_control = kind is not TRAIN_JOBS
        self._client = client
        self._web = web
        self._namespace = target.namespace
        self._stored: list[tuple[int, str]] = []  # rows and names
        self._numbers = {each: count() for each in ("name", "row", "mark", "kind")}
        self.tally = Tally()

    def requests(self) -> Sequence[Callable[[], Awaitable[object]]]:
        """Return the requests in their order; a control attack cannot send reviews."""
        directly = self._dry_run if self._is_control else self._review
        return (
            *(self._create, self._dry_run, self._update, directly, self._beyond),
            *(self._create, self._update, directly, self._create_runtime, directly),
        )

    async def run(self, pace: Pace, seconds: float) -> None:
        """Send requests for some seconds; those for which there is no room are left out."""
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(pace.at_a_time)
        requests, end = self.requests(), loop.time() + seconds

        async def send(request: Callable[[], Awaitable[object]]) -> None:
            async with room:
                self.tally.sent += 1
                try:
                    await request()
                except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                    self.tally.classes[FAILED] += 1
                    self.tally.errors[f"{type(error).__name__}: {str(error)[:120]}"] += 1

        async with asyncio.TaskGroup() as tasks:
            number = 0
            while loop.time() < end:
                if not room.locked():
                    tasks.create_task(send(requests[number % len(requests)]))
                    number += 1
                await asyncio.sleep(1 / pace.rate)

    def _next(self) -> tuple[int, int]:
        """Return the next row and turn."""
        number = next(self._numbers["row"])
        return number % len(rows()), number // len(rows()) % TURNS

    def _job(self, index: int, manifest: Manifest) -> dict[str, Any]:
        job = job_in(self._namespace, f"attack-{next(self._numbers['name'])}", index, manifest)
        return {**job, "apiVersion": self._kind.api_version, "kind": self._kind.kind}

    async def _sent(self, name: str, request: Awaitable[object]) -> bool:
        """Count the request as of this class, or as rejected; return whether it was accepted."""
        try:
            await request
        except KubeError as error:
            if not _is_rejection(error):
                raise
            self.tally.classes[REJECTED] += 1
            return False
        self.tally.classes[name] += 1
        return True

    async def _dry_run(self) -> None:
        index, turn = self._next()
        job = self._job(index, rows()[index].within[turn].new)
        await self._sent(DRY_RUN, self._client.create(self._kind, job, dry_run=True))

    async def _create(self) -> None:
        index, turn = self._next()
        job = self._job(index, rows()[index].within[turn].new)
        name = job["metadata"]["name"]
        job["spec"]["suspend"] = next(self._numbers["kind"]) % 2 == 0
        if len(self._stored) >= STORED_AT_A_TIME:
            _, oldest = self._stored.pop(0)
            await self._client.delete(self._kind, ObjectKey(self._namespace, oldest))
        if await self._sent(STORED, self._client.create(self._kind, job)):
            self.tally.stored_rows[rows()[index].name] += 1
            self._stored.append((index, name))

    async def _update(self) -> None:
        """Change a stored TrainJob: by turns its annotations, and all values of its overrides."""
        if not self._stored:
            return await self._dry_run()
        number = next(self._numbers["mark"])
        index, name = self._stored[number * 7 % len(self._stored)]
        patch: dict[str, Any] = {"metadata": {"annotations": {"example.com/mark": str(number)}}}
        if number % 2:
            spec = rows()[index].within[number // 2 % TURNS].new["spec"]
            fields = ("podTemplateOverrides", "podSpecOverrides")
            patch["spec"] = {each: spec[each] for each in fields if each in spec}
        key = ObjectKey(self._namespace, name)
        await self._sent(UPDATED, self._client.merge_patch(self._kind, key, patch))
        return None

    async def _beyond(self) -> None:
        """Send a TrainJob beyond the limits. The control attack has no webhook to reject it."""
        index, _ = self._next()
        job = self._job(index, rows()[index].beyond.new)
        await self._sent(DRY_RUN, self._client.create(self._kind, job, dry_run=self._is_control))

    async def _create_runtime(self) -> None:
        index, turn = self._next()
        runtime = runtime_in(self._namespace, index, rows()[index].within[turn].runtime)
        try:
            await self._client.create(TRAINING_RUNTIMES, runtime)
        except ForbiddenError:
            self.tally.classes[FORBIDDEN] += 1

    async def _review(self) -> None:
        """Send a review to the webhook's port: of a TrainJob or a runtime, at or beyond limits."""
        index, turn = self._next()
        number = next(self._numbers["kind"])
        row = rows()[index]
        objects = row.beyond if number % 3 == 0 else row.within[turn]
        if number % 2:
            resource: Resource[Any] = TRAINING_RUNTIMES
            new = runtime_in(self._namespace, index, objects.runtime)
            old: Manifest | None = runtime_in(self._namespace, index, objects.old_runtime)
        else:
            resource = TRAIN_JOBS
            name = f"review-{number}"
            new = job_in(self._namespace, name, index, objects.new)
            old = objects.old and job_in(self._namespace, name, index, objects.old)
        if number % 4 < 2:  # noqa: PLR2004  half of them are creations
            old = None
        await self._post(resource, review(resource, old, new))

    async def _post(self, resource: Resource[Any], body: bytes) -> None:
        url = f"https://{LOOPBACK}:{WEBHOOK_PORT}{webhook_path(resource)}?timeout=10s"
        headers = {"Content-Type": "application/json"}
        data = aiohttp.BytesPayload(body[:LONGEST_REVIEW])
        async with self._web.post(url, data=data, headers=headers) as answer:
            await answer.read()
            self.tally.classes[DIRECT] += 1
            self.tally.classes[f"{DIRECT}: {answer.status}"] += 1


def _is_rejection(error: KubeError) -> bool:
    """Whether the API server or the webhook rejected the object, and did not fail."""
    status = getattr(error, "status", 0)
    return status in (400, 403, 413, 422)


async def attack(target: Target, kind: Resource[Any], pace: Pace, seconds: float) -> None:
    """Be the attacker; prints a line when it begins, and at the end the tally as JSON."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    connection = await load_connection(target.kubeconfig)
    async with (
        HttpTransport(connection, user_agent="attacker") as transport,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, local_addr=(POD_ADDRESS, 0))
        ) as web,
    ):
        attacker = Attacker(Client(transport, field_manager="attacker"), web, target, kind)
        print(f"{len(rows())} rows", flush=True)
        await attacker.run(pace, seconds)
        print(attacker.tally.to_json(), flush=True)
