"""The life of pods that run as processes: exit codes, restarts, probes, deletion."""

import asyncio
import re

import pytest

from kftrainer.devcluster.waiting import until
from tests.support.process_pods import Pods, container, python, shell, waiting_for

pytestmark = pytest.mark.process_nodes


async def test_nodes_are_ready_with_capacity_and_version(pods: Pods) -> None:
    lines = (await pods.kubectl("get", "nodes", "-o", "wide", "--no-headers")).splitlines()
    assert [re.split(r"\s{2,}", line)[:2] for line in lines] == [
        ["process-0", "Ready"],
        ["process-1", "Ready"],
    ]


async def test_finished_job_is_complete_and_its_log_is_readable(pods: Pods) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [shell("echo learned")]}}
    await pods.create_object("batch/v1", "Job", "train", spec={"template": template})
    await pods.kubectl("wait", "--for=condition=Complete", "--timeout=60s", "job/train")
    assert await pods.kubectl("logs", "job/train") == "learned\n"


async def test_exit_code_and_termination_message_are_reported(pods: Pods) -> None:
    script = "echo no data > /dev/termination-log; exit 42"
    await pods.create("train", shell(script))
    status = await pods.end_of("train")
    end = container(status)["state"]["terminated"]
    assert (status["phase"], end["exitCode"], end["reason"], end["message"]) == (
        "Failed",
        42,
        "Error",
        "no data\n",
    )


async def test_last_log_lines_are_the_message_when_requested(pods: Pods) -> None:
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    await pods.create("train", shell("echo out of memory; exit 1", **fallback))
    end = container(await pods.end_of("train"))["state"]["terminated"]
    assert end["message"] == "out of memory\n"


async def test_crashing_container_is_restarted_with_backoff(pods: Pods) -> None:
    script = "echo attempt; exit 3"
    await pods.create("train", shell(script), restartPolicy="Always")
    status = await pods.until("train", waiting_for("CrashLoopBackOff"), "backing off")
    found = container(status)
    assert found["lastState"]["terminated"]["exitCode"] == 3
    assert await pods.logs("train", "--previous") == "attempt\n"
    assert "back-off" in found["state"]["waiting"]["message"]
    await pods.until_event("train", "BackOff", "Back-off restarting failed container=main")


async def test_failing_container_is_restarted_until_it_succeeds(pods: Pods) -> None:
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    script = "test -e /data/tried && exit 0; touch /data/tried; exit 1"
    await pods.create(
        "train",
        shell(script, **mount),
        restartPolicy="OnFailure",
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    status = await pods.end_of("train")
    assert (status["phase"], container(status)["restartCount"]) == ("Succeeded", 1)


async def test_missing_program_is_a_start_error(pods: Pods) -> None:
    await pods.create("train", {"name": "main", "image": "trainer", "command": ["nope"]})
    end = container(await pods.end_of("train"))["state"]["terminated"]
    assert (end["reason"], end["exitCode"]) == ("StartError", 128)
    assert 'exec: "nope": executable file not found in $PATH' in end["message"]


async def test_missing_config_map_is_reported_and_the_container_starts_with_it(
    pods: Pods,
) -> None:
    source = {"configMapKeyRef": {"name": "settings", "key": "rate"}}
    await pods.create("train", shell("echo $RATE", env=[{"name": "RATE", "valueFrom": source}]))
    status = await pods.until("train", waiting_for("CreateContainerConfigError"), "waiting")
    assert container(status)["state"]["waiting"]["message"] == 'configmap "settings" not found'
    await pods.create_object("v1", "ConfigMap", "settings", data={"rate": "0.1"})
    await pods.end_of("train")
    assert await pods.logs("train") == "0.1\n"


async def test_init_containers_run_in_order_before_the_main_one(pods: Pods) -> None:
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    first = shell("echo one >> /data/x", **mount) | {"name": "first"}
    second = shell("echo two >> /data/x", **mount) | {"name": "second"}
    printed = await pods.run(
        "train",
        shell("cat /data/x", **mount),
        initContainers=[first, second],
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    assert printed == "one\ntwo\n"


async def test_failing_init_container_fails_the_pod(pods: Pods) -> None:
    failing = shell("exit 7") | {"name": "first"}
    await pods.create("train", shell("echo never"), initContainers=[failing])
    status = await pods.end_of("train")
    assert (status["phase"], container(status)["state"]) == (
        "Failed",
        {"waiting": {"reason": "PodInitializing"}},
    )


async def test_sidecar_runs_until_the_main_container_has_ended(pods: Pods) -> None:
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    server = python(
        """
        import signal, socket, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("stopped"), sys.exit(0)))
        listening = socket.create_server(("", 8080))
        while True:
            listening.accept()[0].close()
        """,
        restartPolicy="Always",
        startupProbe=probe,
    ) | {"name": "server"}
    client = python("import socket; socket.create_connection(('127.0.0.1', 8080)); print('ok')")
    printed = await pods.run("train", client, initContainers=[server])
    assert printed == "ok\n"
    assert await pods.logs("train", "-c", "server") == "stopped\n"


async def test_deleted_pod_gets_sigterm_and_a_grace_period(pods: Pods) -> None:
    script = (
        'trap "echo saving; sleep 1; echo saved; exit 0" TERM; echo up; while :; do sleep 0.1; done'
    )
    await pods.create("train", shell(script))
    await pods.until_logged("train", "up")
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(pods.logs("train", "--follow"))
        await asyncio.sleep(0.5)
        await pods.kubectl("delete", "pod", "train", "--timeout=30s")
    assert followed.result() == "up\nsaving\nsaved\n"


async def test_process_that_ignores_sigterm_is_killed_after_the_grace_period(pods: Pods) -> None:
    await pods.create("train", shell('trap "" TERM; echo up; while :; do sleep 0.1; done'))
    await pods.until_logged("train", "up")
    await pods.kubectl("delete", "pod", "train", "--grace-period=1", "--timeout=20s")
    assert await pods.kubectl("get", "pods", "--ignore-not-found") == ""


async def test_deadline_ends_the_pod(pods: Pods) -> None:
    spec = {"activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1}
    await pods.create("train", shell("sleep 1000"), **spec)
    status = await pods.end_of("train")
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


async def test_failing_liveness_probe_restarts_the_container(pods: Pods) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/x"]}, "periodSeconds": 1}
    fields = {"livenessProbe": probe | {"failureThreshold": 1}}
    await pods.create(
        "train",
        shell("sleep 1000", **fields),
        restartPolicy="Always",
        terminationGracePeriodSeconds=0,
    )
    await pods.until(
        "train",
        lambda status: (
            container(status)["restartCount"] > 0 if status.get("containerStatuses") else False
        ),
        "restarting",
    )
    await pods.until_event("train", "Unhealthy", "Liveness probe failed")
    await pods.until_event("train", "Killing", "failed liveness probe, will be restarted")


async def test_pod_is_ready_when_its_readiness_probe_succeeds(pods: Pods) -> None:
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
    server = shell("sleep 2; exec python3 -m http.server 8080", readinessProbe=probe)
    server["ports"] = [{"name": "http", "containerPort": 8080}]
    await pods.create("train", server)
    message = await pods.until_event("train", "Unhealthy", "Readiness probe failed")
    assert "connect: connection refused" in message
    await pods.running("train")


async def test_hooks_run_after_the_start_and_before_the_end(pods: Pods) -> None:
    def hook(text: str) -> dict[str, object]:
        return {"exec": {"command": ["sh", "-c", f"echo {text} >> /proc/1/fd/1"]}}

    lifecycle = {"postStart": hook("begun"), "preStop": hook("ending")}
    script = 'trap "exit 0" TERM; while :; do sleep 0.1; done'
    await pods.create("train", shell(script, lifecycle=lifecycle))
    await pods.until_logged("train", "begun")
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(pods.logs("train", "--follow"))
        await asyncio.sleep(0.5)
        await pods.kubectl("delete", "pod", "train", "--timeout=30s")
    assert followed.result() == "begun\nending\n"


async def test_describe_shows_events_of_the_kubelet(pods: Pods) -> None:
    await pods.run("train", shell("true"))

    async def described() -> bool:
        printed = await pods.kubectl("describe", "pod", "train")
        return all(
            each in printed
            for each in (
                "Successfully assigned",
                "is the local environment",
                "Container created: main",
                "Container started: main",
                "Reason:       Completed",
            )
        )

    await until(described, within=20, what="the Events in the description")
