"""TrainJobs on process nodes: their runtimes, and the files by which their pods report to tests."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.support.objects import replicated_job, runtime
from tests.support.processes import pids_of
from tests.support.trainjobs import ClusterTeam, Kubectl

WITHIN = 60.0
MOUNT = "/shared"
GRACE = 10  # seconds between SIGTERM and SIGKILL
LABEL_JOBSET = "jobset.sigs.k8s.io/jobset-name"
LABEL_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
LABEL_INDEX = "batch.kubernetes.io/job-completion-index"
# Runs until it is terminated, and reports its start and SIGTERM with its host name.
UNTIL_TERMINATED = """
    trap 'echo $HOSTNAME >> /shared/terminated; exit 143' TERM
    echo $HOSTNAME >> /shared/up
    while :; do sleep 0.05; done
"""


class SharedFolder:
    """A folder of the test that is mounted into all containers at /shared."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def shell(self, script: str) -> list[str]:
        """A command that runs a shell script; its processes can be found by `pids`."""
        return ["sh", "-c", f": {self.path}\n{textwrap.dedent(script)}"]

    def python(self, script: str) -> list[str]:
        """A command that runs a Python script; its processes can be found by `pids`."""
        return ["python3", "-uc", f"# {self.path}\n{textwrap.dedent(script)}"]

    def pids(self) -> list[int]:
        """The processes of this machine that run such commands."""
        return [pid for pid, _ in pids_of(self.path)]

    def write(self, name: str) -> None:
        """Create a file for which a program waits."""
        (self.path / name).touch()

    def lines(self, name: str) -> list[str]:
        """The complete lines of a file, sorted; none if it does not exist."""
        file = self.path / name
        return sorted(file.read_text().splitlines()) if file.exists() else []

    async def until_lines(self, name: str, expected: Sequence[str]) -> None:
        """Wait until a file has these lines, in any order."""
        wanted = sorted(expected)

        async def has_lines() -> bool:
            return self.lines(name) == wanted

        try:
            await until(has_lines, within=WITHIN, what=f"{wanted} in the file {name}")
        except BaseException as error:
            error.add_note(f"lines of the file {name}: {self.lines(name)}")
            raise

    async def until_processes_ended(self) -> None:
        """Wait until no process is left."""

        async def ended() -> bool:
            return not self.pids()

        await until(ended, within=WITHIN, what="the end of all processes")


def step(
    shared: SharedFolder, name: str = "node", ancestor: str | None = "trainer", **container: Any
) -> Object:
    """A job of a runtime: one attempt, with the shared folder."""
    mounts = [{"name": "shared", "mountPath": MOUNT}, *container.pop("volumeMounts", ())]
    fields = {"terminationMessagePolicy": "FallbackToLogsOnError", **container}
    job = replicated_job(name, ancestor, volumeMounts=mounts, **fields)
    job["template"]["spec"]["backoffLimit"] = 0
    folder = {"path": os.fspath(shared.path), "type": "Directory"}
    pod_of(job).update(
        restartPolicy="Never",
        terminationGracePeriodSeconds=GRACE,
        volumes=[{"name": "shared", "hostPath": folder}],
    )
    return job


def pod_of(job: Object) -> Object:
    """The specification of the pods of a job."""
    found: Object = job["template"]["spec"]["template"]["spec"]
    return found


def plain_runtime(*jobs: Object, name: str = "plain", **template: Any) -> Object:
    """A runtime without a policy of a framework; keywords are fields of the JobSet."""
    manifest = runtime(name, jobs=[*jobs], mlPolicy={"numNodes": 1})
    manifest["spec"]["template"]["spec"] |= template
    return manifest


async def train(
    team: ClusterTeam, command: Sequence[str], name: str = "train", nodes: int = 1, **fields: Any
) -> None:
    """Create a TrainJob on the runtime `plain`; keywords are fields of its trainer or its spec."""
    in_trainer = {key: fields.pop(key) for key in ("env",) if key in fields}
    trainer = {"command": [*command], "numNodes": nodes, **in_trainer}
    await team.create_job(name, fields.pop("runtime", "plain"), trainer=trainer, **fields)


async def log_of(
    kubectl: Kubectl, *arguments: str, job: str = "train", index: int = 0, step: str = "node"
) -> str:
    """The log of one node of a TrainJob."""
    labels = {LABEL_JOBSET: job, LABEL_REPLICATED_JOB: step, LABEL_INDEX: index}
    selector = ",".join(f"{label}={value}" for label, value in labels.items())
    return await kubectl("logs", f"--selector={selector}", "--tail=-1", *arguments)
