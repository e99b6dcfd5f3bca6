"""`make bench`: the CPU time and memory that the worst TrainJobs and runtimes cost, at the limits.

First the attacks that are known, each at its original size, which is to be rejected, and as large
as the limits allow. Then a search: objects are changed at random, and those that cost more are
kept. Exits with 1 if an admission or a plan costs more than it may, or if an object that is to be
within the limits exceeds one, so that nothing was measured.

Admission is measured as the manager runs it, with reads from an API server. `admission`: what is
read is as the cache has it. `of edited`: the runtime was edited after the cache was updated last,
so that a TrainJob that would be rejected is validated again, in another pass of the event loop.
"""

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from random import Random
from typing import Any, NamedTuple

import orjson

from bench.hostile_objects import Attack, Objects, edited, excess_in, objects_of, within_limits
from bench.hostile_search import searched
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, JOB_SETS, TRAIN_JOBS, AnyResource
from kftrainer.controllers.trainjob.jobset.update import applicable_plan
from kftrainer.controllers.trainjob.unreadable import planning_error, readable_part
from kftrainer.kube.client.errors import NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.manager.manager import YOUNG
from kftrainer.machinery.webhook.admission import Validator
from kftrainer.machinery.webhook.review import MalformedReviewError, decoded, encoded
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.runtime.validation.rules import Rule
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission

RUNTIMES = Runtimes(load_framework())
LOOP = asyncio.new_event_loop()
MOST_CPU = 0.050  # seconds, of one admission or one plan
VALIDATIONS = {"of edited": 2}  # at most, each of which may take as long as an admission
MIB = 1024 * 1024
MOST_MEMORY = 50 * MIB
ROUNDS = 10
ATTEMPTS = 5
TOO_LARGE = "too large"

ORDINARY = Attack(jobs=3, env=10, volumes=2, mounts=2, trainer_env=5, overrides=1, padding=500)
# As they were first carried out.
KNOWN: Mapping[str, Attack] = {
    "distinct quantities of 991 places": Attack(
        overrides=90, override_volumes=300, quantities=3, volume_kind=0
    ),
    "10k jobs, dependsOn in a chain, gang": Attack(jobs=10_000, order=2, gang=1),
    "12k jobs in order, gang": Attack(jobs=12_000, order=1, gang=1),
    "3k sidecars, 3k init containers, gang": Attack(
        init_containers=6_000, sidecars=2, resources=1, quantities=1, gang=1
    ),
    "90 overrides, 4.5k sizeLimits, update": Attack(
        overrides=90, override_volumes=50, quantities=1, update=2
    ),
    "100 overrides with 600 volumes": Attack(overrides=100, override_volumes=600, volume_kind=5),
    "6k divisors in an override": Attack(
        overrides=1,
        override_containers=1,
        containers=2,
        override_env=6_000,
        env_kind=1,
        quantities=1,
    ),
    "4k containers with resources": Attack(containers=4_000, resources=2, quantities=1),
    "100 overrides of 100 jobs": Attack(jobs=100, overrides=100, targets=100, override_labels=1),
    "16 patches of 100 jobs": Attack(
        jobs=100, overrides=16, targets=100, override_labels=1, patched=1
    ),
    "16 patches of 100 jobs, update": Attack(
        jobs=100, overrides=16, targets=100, override_volumes=1, patched=1, update=2, state=1
    ),
    "16 patches with long lists": Attack(
        overrides=16, override_volumes=128, override_annotations=4, patched=1, update=2
    ),
}
# The worst that earlier searches found: each search starts with them.
FOUND: Sequence[Attack] = (
    # An update of an object that was stored with other types.
    Attack(
        jobs=62,
        containers=7,
        resources=1,
        volumes=1,
        labels=2,
        claims=19,
        rules=1,
        overrides=27,
        override_volumes=9,
        override_containers=3,
        override_init_containers=1,
        override_mounts=5,
        override_gates=1,
        trainer_env=111,
        trainer_resources=1,
        job_annotations=1,
        nodes=4,
        padding=1,
        sidecars=1,
        order=2,
        policy=3,
        volume_kind=1,
        env_kind=4,
        update=5,
        names=3,
        sources=1,
        directives=4,
        legacy=1,
        state=1,
    ),
    # Names that are in a list twice, in the old dialect.
    Attack(
        jobs=66,
        containers=20,
        labels=1,
        claims=1,
        overrides=41,
        override_volumes=8,
        override_containers=4,
        override_mounts=0,
        override_labels=1,
        override_gates=1,
        override_affinities=1,
        trainer_env=109,
        job_labels=56,
        job_annotations=5,
        padding=8,
        sidecars=3,
        gang=2,
        volume_kind=1,
        env_kind=2,
        update=3,
        unknown=4,
        names=3,
        sources=1,
        legacy=1,
        state=3,
    ),
    Attack(
        jobs=37,
        containers=10,
        init_containers=1,
        resources=1,
        ports=1,
        labels=6,
        rules=2,
        overrides=13,
        override_volumes=1,
        override_env=12,
        override_containers=6,
        override_annotations=1,
        trainer_resources=1,
        long_texts=1,
        nodes=298,
        sidecars=2,
        quantities=4,
        order=2,
        gang=1,
        policy=2,
        volume_kind=1,
        unknown=1,
        names=3,
        sources=1,
        legacy=1,
    ),
    Attack(
        jobs=2,
        containers=64,
        overrides=13,
        override_containers=1,
        override_env=60,
        override_volumes=18,
        update=2,
    ),
    Attack(
        jobs=26,
        containers=18,
        env=1,
        volumes=1,
        labels=1,
        claims=50,
        overrides=44,
        override_volumes=11,
        trainer_env=112,
        volume_kind=1,
        env_kind=4,
        update=2,
    ),
    Attack(
        jobs=14,
        init_containers=20,
        resources=1,
        volumes=1,
        mounts=2,
        overrides=41,
        override_volumes=54,
        trainer_resources=64,
        quantities=1,
        gang=2,
        volume_kind=5,
    ),
    Attack(
        jobs=88, containers=3, init_containers=2, resources=1, awaited=88, order=1, quantities=1
    ),
    # Names that are in a list twice, in long lists of the runtime.
    Attack(
        containers=6,
        env=83,
        labels=1,
        claims=1,
        overrides=30,
        override_volumes=4,
        override_env=3,
        override_containers=2,
        override_mounts=0,
        override_labels=2,
        override_gates=1,
        override_affinities=1,
        trainer_env=67,
        job_labels=1,
        job_annotations=3,
        padding=6,
        sidecars=1,
        gang=2,
        volume_kind=1,
        env_kind=2,
        update=3,
        unknown=4,
        names=3,
        sources=1,
        legacy=1,
        state=3,
    ),
    # Too much to merge, which is found out after most of it was merged.
    Attack(
        jobs=52,
        containers=15,
        labels=1,
        claims=1,
        overrides=49,
        targets=2,
        override_volumes=3,
        override_containers=2,
        override_mounts=0,
        override_labels=1,
        override_gates=1,
        override_affinities=1,
        job_labels=168,
        job_annotations=2,
        padding=5,
        sidecars=3,
        gang=2,
        volume_kind=1,
        env_kind=2,
        update=5,
        names=3,
        sources=1,
        legacy=1,
        state=2,
    ),
)


class Cluster:
    """The runtime as a cache holds it, decoded when it is first read, and perhaps a JobSet."""

    def __init__(self, objects: Objects) -> None:
        self._runtime = objects.runtime
        self._job_set = objects.job_set
        self._decoded: Any = None

    def is_complete(self, _resource: AnyResource) -> bool:
        """All kinds are cached."""
        return True

    def get(self, resource: Resource[Any], _key: ObjectKey) -> Any:
        """Return the runtime, or the JobSet."""
        if resource is JOB_SETS:
            return self._job_set
        if resource is not CLUSTER_TRAINING_RUNTIMES:
            return None
        if self._decoded is None:
            self._decoded = resource.decode(self._runtime)
        return self._decoded

    def list(self, _resource: AnyResource, _namespace: str | None = None) -> Sequence[Any]:
        """There are no others."""
        return ()

    def iterate(self, _resource: AnyResource, _namespace: str | None = None) -> Iterator[Any]:
        """There are no others."""
        return iter(())


class ApiServer:
    """Answers reads with JSON, as the API server does, a pass of the event loop later."""

    def __init__(self, *objects: Manifest | None) -> None:
        self._bodies = {each["kind"]: orjson.dumps(each) for each in objects if each is not None}

    async def get(self, resource: AnyResource, _key: ObjectKey) -> Manifest:
        """Return the object of this kind."""
        await asyncio.sleep(0)
        if (body := self._bodies.get(resource.kind)) is None:
            raise NotFoundError(404, "NotFound", "not found")
        manifest: Manifest = orjson.loads(body)
        return manifest


class Cost(NamedTuple):
    """What something costs at its worst."""

    cpu: float  # seconds
    memory: int  # bytes
    outcome: str

    def is_too_much(self, validations: int = 1) -> bool:
        """Whether it costs more than it may."""
        return self.cpu > MOST_CPU * validations or self.memory > MOST_MEMORY


Action = Callable[[Objects], Callable[[], str]]


def review(resource: AnyResource, old: Manifest | None, new: Manifest) -> bytes:
    """The review as an API server sends it."""
    request = {
        "uid": "1",
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "name": new["metadata"]["name"],
        "namespace": new["metadata"].get("namespace", ""),
        "operation": "UPDATE" if old else "CREATE",
        "object": new,
        "oldObject": old,
    }
    head = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    return orjson.dumps({**head, "request": request})


def admitted(body: bytes, validator: Validator) -> str:
    """Answer the review, as the webhook does."""
    try:
        request = decoded(body)
    except MalformedReviewError:
        return TOO_LARGE
    response = LOOP.run_until_complete(validator(request))
    encoded(request.uid, response)
    if Rule.TOO_LARGE in response.rules:
        return TOO_LARGE
    return "admitted" if response.allowed else "rejected"


def admission(objects: Objects) -> Callable[[], str]:
    """Admission of the TrainJob; what is read is as the cache has it."""
    return _admission(objects, objects.runtime)


def admission_after_edit(objects: Objects) -> Callable[[], str]:
    """Admission of the TrainJob, whose runtime was edited after the cache was updated last."""
    return _admission(objects, edited(objects.runtime))


def _admission(objects: Objects, live: Manifest) -> Callable[[], str]:
    body = review(TRAIN_JOBS, objects.old, objects.new)
    server: Any = ApiServer(live, objects.job_set)
    return lambda: admitted(body, TrainJobAdmission(RUNTIMES, Cluster(objects), server))


def runtime_admission(objects: Objects) -> Callable[[], str]:
    """Admission of a change of the runtime."""
    body = review(CLUSTER_TRAINING_RUNTIMES, objects.old_runtime, objects.runtime)
    return lambda: admitted(body, RuntimeAdmission(CLUSTER_TRAINING_RUNTIMES, RUNTIMES.framework))


def planning(objects: Objects) -> Callable[[], str]:
    """Planning of a stored TrainJob on a stored runtime, neither of which was ever decoded."""
    stored = orjson.dumps(objects.new)

    def act() -> str:
        existing = Cluster(objects)
        job, problems = readable_part(orjson.loads(stored))
        try:
            if problems:
                raise planning_error(problems)
            planned = RUNTIMES.of(job).new_objects(job, existing)
        except PlanningError as error:
            return "blocked" if str(error) else ""
        applicable_plan(planned, job, existing)
        return "planned"

    return act


ACTIONS: Mapping[str, Action] = {
    "admission": admission,
    "of edited": admission_after_edit,
    "of runtime": runtime_admission,
    "plan": planning,
}


def cpu_of(action: Action, attack: Attack, *, rounds: int = 1) -> tuple[float, str]:
    """Seconds of CPU, in the least disturbed of some rounds."""
    taken, outcome = [], ""
    for turn in range(rounds):
        act = action(objects_of(attack, turn=turn))
        gc.collect()
        began = time.process_time()
        outcome = act()
        taken.append(time.process_time() - began)
    return min(taken), outcome


def seconds_of(action: Action, attack: Attack, rounds: int) -> float:
    """Return the seconds of CPU only."""
    return cpu_of(action, attack, rounds=rounds)[0]


def cost_of(action: Action, attack: Attack) -> Cost:
    """The CPU time, and in another round the memory."""
    cpu, outcome = cpu_of(action, attack, rounds=ROUNDS)
    act = action(objects_of(attack, turn=ROUNDS))
    gc.collect()
    tracemalloc.start()
    try:
        act()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return Cost(cpu, peak, outcome)


class Table:
    """Prints what everything costs, and remembers whether that is too much."""

    def __init__(self) -> None:
        self.is_too_much = False
        self._usual = {name: cost_of(action, ORDINARY) for name, action in ACTIONS.items()}
        columns = "".join(f"{f'{name} ms':>15} {'x':>5} {'MiB':>5} {'':<9}" for name in ACTIONS)
        print(f"{'':<46}{columns}")
        self.row("an ordinary TrainJob", ORDINARY)

    def row(self, what: str, attack: Attack) -> None:
        """Measure all actions of an attack."""
        cells = ""
        for name, action in ACTIONS.items():
            validations = VALIDATIONS.get(name, 1)
            # On a busy machine everything seems to cost too much now and then.
            costs = (cost_of(action, attack) for _ in range(ATTEMPTS))
            cost = next(costs)
            while cost.is_too_much(validations) and (again := next(costs, None)):
                cost = min(cost, again)
            is_too_much = cost.is_too_much(validations)
            self.is_too_much |= is_too_much
            ratio = cost.cpu / self._usual[name].cpu
            mark = "!" if is_too_much else " "
            cells += (
                f"{cost.cpu * 1e3:>14.1f}{mark} {ratio:>5.0f} {cost.memory / MIB:>5.1f} "
                f"{cost.outcome:<9}"
            )
        print(f"{what:<46}{cells}", flush=True)

    def row_within_limits(self, what: str, attack: Attack) -> None:
        """Measure as much of the attack as the limits allow."""
        attack = within_limits(attack)
        self.row(what, attack)
        if excess := excess_in(objects_of(attack)):
            self.is_too_much = True
            print(f"    !: not measured, because it is beyond the limits: {excess}", flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU for each search")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    # As the manager does.
    gc.freeze()
    gc.set_threshold(YOUNG)
    table = Table()
    for what, attack in KNOWN.items():
        table.row(what, attack)
        table.row_within_limits("    as much of it as the limits allow", attack)
    for number, attack in enumerate(FOUND):
        table.row_within_limits(f"found before, {number}", attack)
    rng = Random(arguments.seed)  # noqa: S311
    for name, action in ACTIONS.items():
        worst, tried = searched(
            partial(seconds_of, action),
            [*KNOWN.values(), *FOUND],
            rng,
            arguments.seconds,
        )
        table.row_within_limits(f"worst {name} of {tried} that were tried", worst)
        counts = {each.name: (getattr(worst, each.name), each.default) for each in fields(Attack)}
        changed = {name: value for name, (value, default) in counts.items() if value != default}
        print(f"    {', '.join(f'{name}={value}' for name, value in changed.items())}")
    if table.is_too_much:
        print(f"!: more than {MOST_CPU * 1e3:.0f} ms or {MOST_MEMORY // MIB} MiB", file=sys.stderr)
    return int(table.is_too_much)


if __name__ == "__main__":
    sys.exit(main())
