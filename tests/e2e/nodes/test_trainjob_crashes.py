"""Crashes of trainers, of their processes and of the API server, as users of TrainJobs see them."""

import os
import re
import signal

import pytest

from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import conditions_of
from tests.support.process_trainjobs import (
    UNTIL_TERMINATED,
    WITHIN,
    SharedFolder,
    log_of,
    plain_runtime,
    pod_of,
    step,
    train,
)
from tests.support.trainjobs import ClusterTeam, Kubectl, summary

pytestmark = pytest.mark.process_nodes

HOSTS = ["train-node-0-0", "train-node-0-1"]
FIRST_FAILURE = (
    r"jobset failed due to .*; first failure: "
    r"pod {host}-\w+ of replicated job node, container node: exit code {code}{text}"
)
# One process without children.
RUNS_UNTIL_GO = """
    import os, socket, time
    with open("/shared/up", "a") as up:
        print(socket.gethostname(), file=up)
    while not os.path.exists("/shared/go"):
        time.sleep(0.05)
    print("learned")
"""


async def failure_of(team: ClusterTeam) -> str:
    """Wait until the TrainJob has failed; the message."""
    job = await team.wait_until_ended("train", "Failed")
    message: str = conditions_of(job)["Failed"]["message"]
    return message


async def test_crashed_node_restarts_all_nodes_by_the_failure_policy(
    team: ClusterTeam, kubectl: Kubectl, shared: SharedFolder
) -> None:
    await team.create(plain_runtime(step(shared), failurePolicy={"maxRestarts": 1}))
    script = """
        trap 'echo $HOSTNAME >> /shared/terminated; exit 143' TERM
        echo $HOSTNAME >> /shared/up-$HOSTNAME
        until [ -e /shared/up-train-node-0-0 ]; do sleep 0.05; done
        [ $JOB_COMPLETION_INDEX = 1 ] && [ $(wc -l < /shared/up-$HOSTNAME) = 1 ] && exit 5
        until [ $(wc -l < /shared/up-$HOSTNAME) = 2 ]; do sleep 0.05; done
        echo second attempt
    """
    await train(team, shared.shell(script), nodes=2)
    await team.wait_until_ended("train")
    assert (await team.get("JobSet"))["status"]["restarts"] == 1
    assert shared.lines("terminated") == HOSTS[:1]
    assert [await log_of(kubectl, index=index) for index in (0, 1)] == ["second attempt\n"] * 2


async def test_last_crash_is_named_when_the_failure_policy_is_exhausted(
    team: ClusterTeam, shared: SharedFolder
) -> None:
    await team.create(plain_runtime(step(shared), failurePolicy={"maxRestarts": 1}))
    script = f"""
        if [ $JOB_COMPLETION_INDEX = 1 ]; then
            echo $HOSTNAME >> /shared/crashes
            echo "attempt $(wc -l < /shared/crashes) diverged" >&2
            exit 5
        fi
        {UNTIL_TERMINATED}
    """
    await train(team, shared.shell(script), nodes=2)
    expected = FIRST_FAILURE.format(host=HOSTS[1], code=5, text=": attempt 2 diverged")
    assert re.fullmatch(expected, await failure_of(team))
    await shared.until_processes_ended()


async def test_container_that_restarts_in_place_keeps_the_log_and_exit_code_of_its_crash(
    team: ClusterTeam, kubectl: Kubectl, shared: SharedFolder
) -> None:
    job = step(shared)
    job["template"]["spec"]["backoffLimit"] = 1
    pod_of(job)["restartPolicy"] = "OnFailure"
    await team.create(plain_runtime(job))
    script = """
        echo $HOSTNAME >> /shared/up
        if [ $(wc -l < /shared/up) = 1 ]; then
            echo out of memory
            exit 9
        fi
        echo second attempt
        until [ -e /shared/go ]; do sleep 0.05; done
    """
    await train(team, shared.shell(script))
    await shared.until_lines("up", [HOSTS[0], HOSTS[0]])
    [pod] = await team.wait_until_running("train", 1)
    [status] = pod["status"]["containerStatuses"]
    end = status["lastState"]["terminated"]
    assert (status["restartCount"], end["exitCode"], end["message"]) == (1, 9, "out of memory\n")
    name = pod["metadata"]["name"]
    assert await kubectl("logs", name, "--previous") == "out of memory\n"
    shared.write("go")
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}
    assert await kubectl("logs", name) == "second attempt\n"


async def test_killed_process_fails_the_trainjob_with_the_exit_code_of_sigkill(
    team: ClusterTeam, shared: SharedFolder
) -> None:
    await team.create(plain_runtime(step(shared)))
    await train(team, shared.python(RUNS_UNTIL_GO))
    await shared.until_lines("up", HOSTS[:1])
    [pid] = shared.pids()
    os.kill(pid, signal.SIGKILL)
    expected = FIRST_FAILURE.format(host=HOSTS[0], code=137, text="")
    assert re.fullmatch(expected, await failure_of(team))
    [pod] = await team.pods("train")
    end = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (137, "Error")


async def test_training_continues_and_completes_when_the_api_server_is_killed(
    control_plane: ControlPlane,
    team: ClusterTeam,
    api: ApiClient,
    kubectl: Kubectl,
    shared: SharedFolder,
) -> None:
    await team.create(plain_runtime(step(shared)))
    await train(team, shared.python(RUNS_UNTIL_GO), nodes=2)
    await shared.until_lines("up", HOSTS)
    await team.wait_until_running("train", 2)
    before = sorted(shared.pids())

    [server] = [each for each in control_plane.processes if each.name == "kube-apiserver"]
    server.kill()
    assert sorted(shared.pids()) == before
    shared.write("go")
    await shared.until_processes_ended()
    server.start()

    async def is_ready() -> bool:
        try:
            await api.fetch("GET", "/readyz")
        except (ApiError, UnreachableError):
            return False
        return True

    await until(is_ready, within=WITHIN, what="the API server being ready")
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}
    assert [await log_of(kubectl, index=index) for index in (0, 1)] == ["learned\n"] * 2
    pods = await team.pods("train")
    assert [each["status"]["containerStatuses"][0]["restartCount"] for each in pods] == [0, 0]
