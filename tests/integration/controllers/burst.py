"""Many TrainJobs at once, and what has become of all of them in the end."""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import CHILDREN, COMPLETED, ROW, Team, conditions_of

RUNTIMES = ("torch", "mpi")
# How many TrainJobs there are for one that is suspended, and for one whose JobSet completes.
SUSPENDED_EACH, COMPLETED_EACH = 5, 7
SETTLED_WITHIN = 90.0
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


class Burst:
    """So many TrainJobs on torch and MPI in turn, of which some are suspended and some complete."""

    def __init__(self, team: Team, size: int) -> None:
        self.team = team
        names = [f"job-{number}" for number in range(size)]
        self._says = {name: _says_in_the_end(_number(name)) for name in names}

    async def create(self) -> None:
        """Create the runtimes, and all TrainJobs as fast as the server takes them."""
        for runtime in RUNTIMES:
            await self.team.create_runtime(runtime)
        async with asyncio.TaskGroup() as creating:
            for name, said in self._says.items():
                job = self.team.create_job(
                    name,
                    runtime=RUNTIMES[_number(name) % len(RUNTIMES)],
                    suspend=said == {"Suspended"},
                )
                creating.create_task(job)

    async def play(self) -> None:
        """Play the JobSet controller, until all JobSets have completed that are to."""
        left = {name for name, said in self._says.items() if said == {"Complete"}}

        async def played() -> bool:
            there = {each["metadata"]["name"] for each in await self.team.all("JobSet")}
            for name in left & there:
                await self.team.job_set_says(COMPLETED, rows=[ROW], name=name)
                left.remove(name)
            return not left

        await until(played, within=SETTLED_WITHIN, what="the JobSets completing", every=0.3)

    async def until_settled(self) -> None:
        """Wait until all have their JobSets, and say what they should."""

        async def settled() -> bool:
            jobs = await self.team.all("TrainJob")
            says = {each["metadata"]["name"]: set(conditions_of(each)) for each in jobs}
            return says == self._says and len(await self.team.all("JobSet")) == len(says)

        await until(settled, within=SETTLED_WITHIN, what="all being settled", every=0.5)

    async def outcome(self) -> Object:
        """All there is in the end, but for what is of one run only."""
        found: Object = {}
        for kind in ("TrainJob", "TrainingRuntime", *CHILDREN):
            for each in await self.team.all(kind):
                found[f"{kind}/{each['metadata']['name']}"] = comparable(each)
        return found

    async def check_each_was_made_once(self) -> None:
        """Only the manager wrote the objects, and none after it was made."""
        for kind in CHILDREN:
            for each in await self.team.all(kind):
                fields = each["metadata"]["managedFields"]
                [entry] = [one for one in fields if one.get("subresource") != "status"]
                assert (entry["manager"], entry["operation"]) == ("trainer", "Apply")
                assert each["metadata"].get("generation", 1) == 1


def _number(name: str) -> int:
    return int(name.removeprefix("job-"))


def _says_in_the_end(number: int) -> set[str]:
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


def objects_made(log: Sequence[Object]) -> list[str]:
    """The objects that a manager says that it has made."""
    return [
        f"{each['kind']} {each['object']}"
        for each in log
        if each["event"] == "trainjob.created_object"
    ]
