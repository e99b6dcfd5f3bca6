"""The costliest TrainJobs and runtimes that were found, at sizes beyond the limits.

To reject one, or not to plan one that is stored, must cost about as much as reading its JSON.
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

from kftrainer.api.resources import TRAINING_RUNTIMES
from kftrainer.controllers.readable import readable_part
from kftrainer.machinery.admission_review import decoded
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.existing import Given
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission
from tests.support.costly_objects import distinct_quantities
from tests.support.objects import Object, replicated_job
from tests.support.objects import runtime as runtime_of
from tests.support.plans import RUNTIMES, in_namespace, job_on
from tests.support.reviews import review

GANG: Object = {"podGroupPolicy": {"coscheduling": {}}}
PLAIN = runtime_of(mlPolicy={"numNodes": 1})
MOST = 15  # times the CPU time of reading the JSON


def job(name: str, *containers: Object, **pod: Any) -> Object:
    made = replicated_job(name, "trainer" if name == "node" else None)
    spec = made["template"]["spec"]["template"]["spec"]
    spec |= pod
    spec["containers"] += containers
    return made


def jobs(count: int) -> list[Object]:
    return [job("node"), *(job(f"job-{n}") for n in range(1, count))]


def in_chain(count: int) -> list[Object]:
    made = jobs(count)
    for earlier, later in pairwise(made):
        later["dependsOn"] = [{"name": earlier["name"], "status": "Complete"}]
    return made


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
    made = runtime_of(jobs=jobs(4_000), mlPolicy=None, **GANG)
    made["spec"]["template"]["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    return made


def sidecars() -> Object:
    inits = [container(n, **({"restartPolicy": "Always"} if n % 2 else {})) for n in range(6_000)]
    return runtime_of(jobs=[job("node", initContainers=inits)], mlPolicy=None, **GANG)


def overrides(*made: Object) -> Object:
    return {"podTemplateOverrides": list(made)}


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
    """Seconds of CPU, in the less disturbed of two rounds."""
    taken = []
    for _ in range(2):
        gc.collect()
        began = time.process_time()
        act()
        taken.append(time.process_time() - began)
    return min(taken)


@dataclass(frozen=True)
class Case:
    """A TrainJob and its runtime, one of which is beyond the limits."""

    job: Object
    runtime: Object
    reading: float  # CPU time of reading both as JSON

    def create(self) -> bool:
        """Review the creation of the TrainJob; whether it is allowed."""
        return self._admitted(review(self.job))

    def update(self) -> bool:
        """Review an update of the TrainJob after which it is still as costly."""
        old = {**self.job, "spec": {**self.job["spec"], "labels": {"a": "b"}}}
        return self._admitted(review(self.job, old, operation="UPDATE"))

    def _admitted(self, asked: Object) -> bool:
        admission = TrainJobAdmission(RUNTIMES, Given([self.runtime]), None)
        return asyncio.run(admission(decoded(orjson.dumps(asked)))).allowed

    def create_runtime(self) -> bool:
        """Review the creation of the runtime; whether it is allowed."""
        request = decoded(orjson.dumps(review(self.runtime)))
        return asyncio.run(RuntimeAdmission(TRAINING_RUNTIMES)(request)).allowed

    def plan(self) -> bool:
        """Plan the stored TrainJob on the stored runtime; whether that has a result."""
        job, problems = readable_part(self.job)
        try:
            return not problems and bool(RUNTIMES.of(job).new_objects(job, Given([self.runtime])))
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
    body = orjson.dumps([job, in_namespace(runtime)])
    job, runtime = orjson.loads(body)
    return Case(job, runtime, reading=cpu_of(lambda: orjson.loads(body)))


def test_admission_of_objects_beyond_the_limits_costs_little_more_than_their_json(
    case: Case,
) -> None:
    for act in (case.create, case.update, case.create_runtime):
        assert cpu_of(act) < MOST * case.reading, act.__name__
    assert not case.create()


def test_plan_of_objects_beyond_the_limits_costs_little_more_than_their_json(case: Case) -> None:
    assert cpu_of(case.plan) < MOST * case.reading
    assert not case.plan()
