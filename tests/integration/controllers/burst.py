"""Many TrainJobs at once, and what has become of all of them in the end."""

import asyncio
import copy
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import CHILDREN, COMPLETED, ROW, Team, conditions_of

RUNTIMES = ("torch", "mpi")
# How many TrainJobs there are for one that is suspended, and for one whose JobSet completes.
SUSPENDED_EACH, COMPLETED_EACH = 5, 7
SETTLED_WITHIN = 300.0  # much more than it takes on a busy machine
AT_ONCE = 20  # requests
# What no two runs have in common.
OF_ONE_RUN = {
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "lastTransitionTime",
    "ssh-privatekey",
    "ssh-publickey",
    "trainer.kubeflow.org/applied-plan",  # a digest of uids, among others
}


async def some_at_a_time(requests: Iterable[Awaitable[object]]) -> None:
    """Send them all, but few at once: their time runs while they wait for a connection.

    An iterable that makes them one by one leaves none behind that was never sent.
    """
    left = iter(requests)

    async def send() -> None:
        for each in left:
            await each

    async with asyncio.TaskGroup() as sending:
        for _ in range(AT_ONCE):
            sending.create_task(send())


async def play_jobset_controller(team: Team, conditions: Mapping[str, Sequence[Object]]) -> None:
    """Act as the JobSet controller: set these conditions on each JobSet once it exists."""
    left = dict(conditions)

    async def is_complete() -> bool:
        for each in await team.all("JobSet"):
            name = each["metadata"]["name"]
            if name in left:
                await team.set_jobset_status(*left.pop(name), rows=[ROW], name=name)
        return not left

    await until(is_complete, within=SETTLED_WITHIN, what="the JobSets saying so", every=0.3)


class Burst:
    """A number of TrainJobs, torch and MPI alternately; some are suspended, some complete."""

    def __init__(self, team: Team, size: int) -> None:
        self.team = team
        self._conditions = {_name(number): _final_conditions(number) for number in range(size)}

    async def create(self) -> None:
        """Create the runtimes and all TrainJobs."""
        await self.create_runtimes()
        await self.create_jobs(range(len(self._conditions)))

    async def create_runtimes(self) -> None:
        """Create the runtimes."""
        for runtime in RUNTIMES:
            await self.team.create_runtime(runtime)

    async def create_jobs(self, numbers: Iterable[int]) -> None:
        """Create the TrainJobs of these numbers as fast as the server takes them."""
        await some_at_a_time(self._create_job(each) for each in numbers)

    async def _create_job(self, number: int) -> None:
        name, runtime = _name(number), RUNTIMES[number % len(RUNTIMES)]
        is_suspended = self._conditions[name] == {"Suspended"}
        await self.team.create_job(name, runtime=runtime, suspend=is_suspended)

    async def play_jobset_controller(self) -> None:
        """Play the JobSet controller, until all JobSets have completed that are to."""
        complete = [name for name, expected in self._conditions.items() if expected == {"Complete"}]
        await play_jobset_controller(self.team, {name: [COMPLETED] for name in complete})

    async def wait_until_settled(self) -> None:
        """Wait until all have their JobSets and their final conditions."""

        async def settled() -> bool:
            jobs = await self.team.all("TrainJob")
            conditions = {each["metadata"]["name"]: set(conditions_of(each)) for each in jobs}
            return conditions == self._conditions and len(await self.team.all("JobSet")) == len(
                conditions
            )

        await until(settled, within=SETTLED_WITHIN, what="all being settled", every=0.5)

    async def outcome(self) -> Object:
        """All there is in the end, but for what is of one run only."""
        found: Object = {}
        for kind in ("TrainJob", "TrainingRuntime", *CHILDREN):
            for each in await self.team.all(kind):
                found[f"{kind}/{each['metadata']['name']}"] = comparable(each)
        return found

    async def check_each_was_created_once(self) -> None:
        """Only the manager wrote the objects, and none after it was created."""
        for kind in CHILDREN:
            for each in await self.team.all(kind):
                fields = each["metadata"]["managedFields"]
                [entry] = [one for one in fields if one.get("subresource") != "status"]
                assert (entry["manager"], entry["operation"]) == ("trainer", "Apply")
                assert each["metadata"].get("generation", 1) == 1


def _name(number: int) -> str:
    return f"job-{number}"


def _final_conditions(number: int) -> set[str]:
    """The conditions of the TrainJob of this number."""
    if number % SUSPENDED_EACH == 0:
        return {"Suspended"}
    return {"Complete"} if number % COMPLETED_EACH == 0 else set()


def comparable(value: Any) -> Any:
    """The same without what is of one run only."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items() if key not in OF_ONE_RUN}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return copy.deepcopy(value)


def created_objects(log: Sequence[Object]) -> list[str]:
    """The objects that a manager has logged as created."""
    return [f"{each['kind']} {each['object']}" for each in log if each["event"] == "object_created"]
