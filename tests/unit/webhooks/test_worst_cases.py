"""The costliest TrainJobs and runtimes that were found.

At sizes beyond the limits, to reject one, or not to plan one that is stored, must cost about as
much as reading its JSON. At the limits, each review is validated once, and again only if an object
that the cache holds has been edited since.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
import pytest

from bench.hostile import FOUND, KNOWN, ApiServer, Cluster
from bench.hostile import review as of_api_server
from bench.hostile_objects import Attack, Objects, excess_in, objects_of, within_limits
from kftrainer.api.resources import TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.unreadable import readable_part
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.handler import LARGE, admission
from kftrainer.machinery.webhook.review import decoded
from kftrainer.machinery.webhook.server import HttpRequest
from kftrainer.runtime.cluster_reader import ClusterReader, GivenObjects
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.webhooks.registration import webhook_path
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission
from tests.support.costly_objects import distinct_quantities
from tests.support.live_objects import LiveObjects
from tests.support.objects import Object, replicated_job
from tests.support.objects import runtime as runtime_of
from tests.support.plans import RUNTIMES, in_namespace, job_on
from tests.support.reviews import review

GANG: Object = {"podGroupPolicy": {"coscheduling": {}}}
PLAIN = runtime_of(mlPolicy={"numNodes": 1})
JSON = {"Content-Type": "application/json"}
MOST = 15  # times the CPU time of reading the JSON


def job(name: str, *containers: Object, **pod: Any) -> Object:
    replicated = replicated_job(name, "trainer" if name == "node" else None)
    spec = replicated["template"]["spec"]["template"]["spec"]
    spec |= pod
    spec["containers"] += containers
    return replicated


def jobs(count: int) -> list[Object]:
    return [job("node"), *(job(f"job-{n}") for n in range(1, count))]


def in_chain(count: int) -> list[Object]:
    replicated = jobs(count)
    for earlier, later in pairwise(replicated):
        later["dependsOn"] = [{"name": earlier["name"], "status": "Complete"}]
    return replicated


def amounts(number: int) -> Object:
    return {half: {"cpu": f"{number + 1}m"} for half in ("limits", "requests")}


def container(number: int, **more: Any) -> Object:
    return {"name": f"c{number}", "image": "x", "resources": amounts(number), **more}


def override(*targets: str, **spec: Any) -> Object:
    return {"targetJobs": [{"name": each} for each in targets], "spec": spec}


def volumes(start: int, count: int) -> list[Object]:
    return [{"name": f"v{n}", "emptyDir": {"sizeLimit": f"{n + 1}m"}} for n in range(start, count)]


def divisor(number: int) -> Object:
    source = {"resource": "limits.cpu", "divisor": f"{number + 1}m"}
    return {"name": f"E{number}", "valueFrom": {"resourceFieldRef": source}}


def in_order() -> Object:
    replicated = runtime_of(jobs=jobs(4_000), mlPolicy=None, **GANG)
    replicated["spec"]["template"]["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    return replicated


def sidecars() -> Object:
    inits = [container(n, **({"restartPolicy": "Always"} if n % 2 else {})) for n in range(6_000)]
    return runtime_of(jobs=[job("node", initContainers=inits)], mlPolicy=None, **GANG)


def overrides(*replicated: Object) -> Object:
    return {"podTemplateOverrides": list(replicated)}


JOBS: dict[str, Callable[[], Object]] = {
    "distinct quantities": lambda: {"trainer": distinct_quantities(38_200)},
    "sizes of volumes": lambda: overrides(
        *(override("node", volumes=volumes(50 * n, 50 * n + 50)) for n in range(90))
    ),
    "volumes in many overrides": lambda: overrides(
        *(override("node", volumes=[{"name": f"v{n}"} for n in range(400)]) for _ in range(100))
    ),
    "divisors": lambda: overrides(
        override("node", containers=[{"name": "node", "env": [*map(divisor, range(6_000))]}])
    ),
}
RUNTIMES_OF_JOBS: dict[str, Callable[[], Object]] = {
    "dependsOn in a chain": lambda: runtime_of(jobs=in_chain(4_000), mlPolicy=None, **GANG),
    "jobs in order": in_order,
    "sidecars": sidecars,
    "containers with resources": lambda: runtime_of(
        jobs=[job("node", *map(container, range(4_000)))]
    ),
}


def cpu_of(act: Callable[[], object]) -> float:
    """Seconds of CPU."""
    gc.collect()
    began = time.process_time()
    act()
    return time.process_time() - began


def costs_less(act: Callable[[], object], limit: float) -> bool:
    """Whether one of two rounds takes fewer seconds of CPU; the second only if needed."""
    return any(cpu_of(act) < limit for _ in range(2))


def edited(runtime: Object) -> Object:
    metadata = {**runtime["metadata"], "resourceVersion": "2", "generation": 2}
    return {**runtime, "metadata": metadata}


@dataclass(frozen=True)
class Case:
    """A TrainJob and its runtime, one of which is beyond the limits."""

    job: Object
    runtime: Object
    reading: float  # CPU time of reading both as JSON

    def create(self) -> bool:
        """Review the creation of the TrainJob; whether it is allowed."""
        return self._admitted(review(self.job), self.runtime)

    def create_after_edit(self) -> bool:
        """Review the creation of the TrainJob; the cache lags behind an edit of the runtime."""
        return self._admitted(review(self.job), edited(self.runtime))

    def update(self) -> bool:
        """Review an update of the TrainJob after which it is still as costly."""
        return self._admitted(self._update(), self.runtime)

    def update_after_edit(self) -> bool:
        """Review such an update; the cache lags behind an edit of the runtime."""
        return self._admitted(self._update(), edited(self.runtime))

    def _update(self) -> Object:
        old = {**self.job, "spec": {**self.job["spec"], "labels": {"a": "b"}}}
        return review(self.job, old, operation="UPDATE")

    def _admitted(self, updated: Object, live: Object) -> bool:
        server: Any = LiveObjects(live)
        validator = TrainJobAdmission(RUNTIMES, GivenObjects([self.runtime]), server)
        return asyncio.run(validator(decoded(orjson.dumps(updated)))).allowed

    def create_runtime(self) -> bool:
        """Review the creation of the runtime; whether it is allowed."""
        request = decoded(orjson.dumps(review(self.runtime)))
        return asyncio.run(RuntimeAdmission(TRAINING_RUNTIMES, RUNTIMES.framework)(request)).allowed

    def plan(self) -> bool:
        """Plan the stored TrainJob on the stored runtime; whether that has a result."""
        job, problems = readable_part(self.job)
        try:
            return not problems and bool(
                RUNTIMES.of(job).new_objects(job, GivenObjects([self.runtime]))
            )
        except PlanningError:
            return False


@pytest.fixture(scope="module", params=[*JOBS, *RUNTIMES_OF_JOBS])
def case(request: pytest.FixtureRequest) -> Case:
    """Each case, built once."""
    if request.param in JOBS:
        job, runtime = job_on(PLAIN, suspend=True, **JOBS[request.param]()), PLAIN
    else:
        runtime = RUNTIMES_OF_JOBS[request.param]()
        job = job_on(runtime, suspend=True)
    runtime = in_namespace(runtime)
    runtime["metadata"] |= {"uid": "1", "resourceVersion": "1", "generation": 1}
    body = orjson.dumps([job, runtime])
    job, runtime = orjson.loads(body)
    return Case(job, runtime, reading=min(cpu_of(lambda: orjson.loads(body)) for _ in range(2)))


def test_admission_of_objects_beyond_the_limits_costs_little_more_than_their_json(
    case: Case,
) -> None:
    for act in (
        case.create,
        case.create_after_edit,
        case.update,
        case.update_after_edit,
        case.create_runtime,
    ):
        assert costs_less(act, MOST * case.reading), act.__name__
    assert not case.create()


def test_plan_of_objects_beyond_the_limits_costs_little_more_than_their_json(case: Case) -> None:
    assert costs_less(case.plan, MOST * case.reading)
    assert not case.plan()


class Counted(Runtimes):
    """Counts validations."""

    def __init__(self) -> None:
        super().__init__(load_framework())
        self.validations = 0

    def validate(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        self.validations += 1
        return super().validate(old, new, existing)


@pytest.fixture(params=[*KNOWN, *range(len(FOUND))])
def at_the_limits(request: pytest.FixtureRequest) -> Objects:
    """The objects of an attack, as large as the limits allow."""
    attack = KNOWN[request.param] if request.param in KNOWN else FOUND[request.param]
    return objects_of(within_limits(attack))


def test_measured_attacks_are_within_the_limits(at_the_limits: Objects) -> None:
    assert excess_in(at_the_limits) is None


def test_review_at_the_limits_is_validated_once_unless_the_runtime_was_edited(
    at_the_limits: Objects,
) -> None:
    objects = at_the_limits
    outcomes = []
    for live in (objects.runtime, edited(dict(objects.runtime))):
        runtimes = Counted()
        server: Any = ApiServer(live, objects.job_set)
        validator = TrainJobAdmission(runtimes, Cluster(objects), server)
        request = decoded(of_api_server(TRAIN_JOBS, objects.old, objects.new))
        outcomes.append((asyncio.run(validator(request)).allowed, runtimes.validations))
    allowed, _ = outcomes[0]
    assert outcomes == [(allowed, 1), (allowed, 1 if allowed else 2)]


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that records the CPU time of its longest pass."""

    longest_pass = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_pass = max(self.longest_pass, time.thread_time() - began)


def longest_pass(objects: Objects, count: int) -> float:
    """Return the CPU time of the longest pass while reviews that come at once are answered."""
    server: Any = ApiServer(objects.runtime, objects.job_set)
    path = webhook_path(TRAIN_JOBS)
    handle = admission(
        {path: TrainJobAdmission(RUNTIMES, Cluster(objects), server)},
        clock=SystemClock(),
        metrics=Metrics(),
    )
    body = of_api_server(TRAIN_JOBS, objects.old, objects.new)

    async def read_body() -> bytes:
        return body

    async def send() -> int:
        return (await handle(HttpRequest("POST", path, [], JSON, read_body))).status

    async def send_all() -> list[int]:
        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(send()) for _ in range(count)]
        return [each.result() for each in sent]

    gc.collect()
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        assert runner.run(send_all()) == [200] * count
        loop = runner.get_loop()
        assert isinstance(loop, MeasuredLoop)
        return loop.longest_pass


def test_event_loop_iteration_takes_as_long_as_one_review_for_any_number_of_reviews() -> None:
    attack = Attack(jobs=20, overrides=40, override_volumes=5, trainer_env=50, update=2, unknown=1)
    objects = objects_of(within_limits(attack))
    assert len(of_api_server(TRAIN_JOBS, objects.old, objects.new)) <= LARGE
    alone, many = (min(longest_pass(objects, count) for _ in range(3)) for count in (1, 12))
    assert many < 2 * alone
