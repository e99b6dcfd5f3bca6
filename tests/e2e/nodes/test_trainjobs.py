"""TrainJobs without a framework on process nodes: rendezvous of nodes, and initializers."""

import re

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import conditions_of
from tests.support.process_trainjobs import (
    WITHIN,
    SharedFolder,
    log_of,
    plain_runtime,
    step,
    train,
)
from tests.support.runtimes import CLAIM, INITIALIZER_MOUNT
from tests.support.trainjobs import ClusterTeam, Kubectl, summary

pytestmark = pytest.mark.process_nodes

STEPS = ("dataset-initializer", "model-initializer")
SOURCES = {
    "dataset": {"storageUri": "hf://team/dataset"},
    "model": {"storageUri": "hf://team/model"},
}
# All nodes meet at the first node of their TrainJob, which listens on the port of torchrun.
RENDEZVOUS = """
    import os, pathlib, socket, time

    def barrier(name):
        folder = pathlib.Path("/shared")
        (folder / f"{name}-{socket.gethostname()}").touch()
        while len(list(folder.glob(f"{name}-*"))) < int(os.environ["NODES"]):
            time.sleep(0.05)

    def connected(address):
        while True:
            try:
                return socket.create_connection(address)
            except OSError:
                time.sleep(0.05)

    def resolves(name):
        try:
            return bool(socket.getaddrinfo(name, PORT))
        except OSError:
            return False

    PORT = 29500
    own = socket.gethostname()
    service = socket.getfqdn().split(".")[1]
    prefix, _, rank = own.rpartition("-")
    if rank == "0":
        peer = socket.create_server(("", PORT)).accept()[0]
    else:
        peer = connected((f"{prefix}-0.{service}", PORT))
    peer.sendall(own.encode())
    print(own, "of", service, "reached", peer.recv(100).decode())
    barrier("met")
"""


async def test_program_finds_its_environment_its_host_name_and_its_peers(
    team: ClusterTeam, kubectl: Kubectl, shared: SharedFolder
) -> None:
    await team.create(plain_runtime(step(shared)))
    script = (
        RENDEZVOUS
        + """
    print(os.environ["JOB_COMPLETION_INDEX"], os.environ["EPOCHS"], os.environ["HOSTNAME"])
    """
    )
    env = [{"name": "NODES", "value": "2"}, {"name": "EPOCHS", "value": "3"}]
    await train(team, shared.python(script), nodes=2, env=env)
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}
    assert [await log_of(kubectl, index=index) for index in (0, 1)] == [
        "train-node-0-0 of train reached train-node-0-1\n0 3 train-node-0-0\n",
        "train-node-0-1 of train reached train-node-0-0\n1 3 train-node-0-1\n",
    ]


async def test_two_trainjobs_on_one_port_reach_only_their_own_nodes(
    team: ClusterTeam, kubectl: Kubectl, shared: SharedFolder
) -> None:
    await team.create(plain_runtime(step(shared)))
    script = (
        RENDEZVOUS
        + """
    other = "second" if service == "first" else "first"
    node = f"{other}-node-0-0"
    print(*map(resolves, (f"{node}.{other}", node, f"{node}.{service}", f"{prefix}-0.{other}")))
    barrier("compared")
    """
    )
    command = shared.python(script)
    for name in ("first", "second"):
        await train(team, command, name, nodes=2, env=[{"name": "NODES", "value": "4"}])
    for name in ("first", "second"):
        await team.wait_until_ended(name)
        nodes = f"{name}-node-0-0", f"{name}-node-0-1"
        assert [await log_of(kubectl, job=name, index=index) for index in (0, 1)] == [
            f"{own} of {name} reached {peer}\nTrue False False False\n"
            for own, peer in (nodes, nodes[::-1])
        ]


def with_initializers(shared: SharedFolder, script: str) -> Object:
    """A runtime whose initializers run a script and share a volume with the trainer."""
    jobs = [
        step(shared, name, name, command=shared.shell(script), volumeMounts=INITIALIZER_MOUNT)
        for name in STEPS
    ]
    node = step(shared, volumeMounts=INITIALIZER_MOUNT)
    node["dependsOn"] = [{"name": name, "status": "Complete"} for name in STEPS]
    return plain_runtime(*jobs, node, volumeClaimPolicies=[{"templates": [CLAIM]}])


async def test_initializers_fill_the_volume_of_the_trainer_before_it_starts(
    team: ClusterTeam, kubectl: Kubectl, shared: SharedFolder
) -> None:
    script = """
        echo $HOSTNAME >> /shared/up
        until [ -e /shared/go ]; do sleep 0.05; done
        echo $STORAGE_URI > /workspace/${HOSTNAME#train-}
    """
    await team.create(with_initializers(shared, script))
    await train(
        team,
        shared.shell("cat /workspace/dataset-* /workspace/model-*"),
        initializer=SOURCES,
    )
    await shared.until_lines("up", [f"train-{each}-0-0" for each in STEPS])
    assert await team.pod_counts("train") == dict.fromkeys(STEPS, 1)
    shared.write("go")
    await team.wait_until_ended("train")
    assert await log_of(kubectl) == "hf://team/dataset\nhf://team/model\n"


async def test_failed_initializer_is_named_in_the_condition_and_in_the_description(
    team: ClusterTeam, kubectl: Kubectl, shared: SharedFolder
) -> None:
    script = """
        [ $HOSTNAME = train-dataset-initializer-0-0 ] || exit 0
        echo reading $STORAGE_URI
        echo "dataset not found" >&2
        exit 3
    """
    await team.create(with_initializers(shared, script))
    await train(team, shared.shell("echo $HOSTNAME > /shared/trained"), initializer=SOURCES)
    job = await team.wait_until_ended("train", "Failed")
    message = conditions_of(job)["Failed"]["message"]
    assert re.fullmatch(
        r"jobset failed due to one or more job failures .*; first failure: "
        r"pod train-dataset-initializer-0-0-\w+ of replicated job dataset-initializer, "
        r"container dataset-initializer: exit code 3: dataset not found",
        message,
    )
    assert not shared.lines("trained")

    async def described() -> bool:
        return message in " ".join((await kubectl("describe", "trainjob", "train")).split())

    await until(described, within=WITHIN, what="the message in the description")
