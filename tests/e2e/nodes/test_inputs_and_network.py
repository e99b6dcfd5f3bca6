"""What processes in pods find: environment, volumes, names, Services, and nothing of the host."""

import base64

import pytest

from tests.support.process_pods import Pods, python, shell

pytestmark = pytest.mark.process_nodes


async def test_environment_is_that_of_the_specification(pods: Pods, namespace: str) -> None:
    await pods.create_object("v1", "Secret", "keys", stringData={"TOKEN": "secret"})
    env = [
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "TEXT", "value": "$(WHERE)-$$(WHERE)"},
    ]
    printed = await pods.run(
        "train",
        shell(
            "echo $TEXT $TOKEN $HOSTNAME $KUBERNETES_SERVICE_HOST",
            env=env,
            envFrom=[{"secretRef": {"name": "keys"}}],
        ),
    )
    assert printed == f"{namespace}-$(WHERE) secret train 10.0.0.1\n"


async def test_volumes_are_mounted_with_their_modes(pods: Pods) -> None:
    await pods.create_object("v1", "ConfigMap", "hosts", data={"hostfile": "a slots=2\n"})
    key = base64.b64encode(b"key").decode()
    await pods.create_object("v1", "Secret", "ssh", data={"id": key})
    volumes = [
        {"name": "hosts", "configMap": {"name": "hosts"}},
        {"name": "ssh", "secret": {"secretName": "ssh", "defaultMode": 0o600}},
        {"name": "shared", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [
        {"name": "hosts", "mountPath": "/etc/mpi"},
        {"name": "ssh", "mountPath": "/root/.ssh"},
        {"name": "shared", "mountPath": "/dev/shm"},
    ]
    script = "cat /etc/mpi/hostfile; stat -Lc %a /root/.ssh/id; touch /dev/shm/x && echo ok"
    printed = await pods.run("train", shell(script, volumeMounts=mounts), volumes=volumes)
    assert printed == "a slots=2\n600\nok\n"


async def test_claim_is_provisioned_and_shared_by_pods(pods: Pods) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await pods.create_object("v1", "PersistentVolumeClaim", "data", spec=spec)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    await pods.run("write", shell("echo dataset > /data/x", **mount), volumes=volumes)
    assert await pods.run("read", shell("cat /data/x", **mount), volumes=volumes) == "dataset\n"


async def test_missing_volume_is_reported(pods: Pods) -> None:
    await pods.create(
        "train",
        shell("true", volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        volumes=[{"name": "v", "configMap": {"name": "missing"}}],
    )
    message = await pods.until_event("train", "FailedMount")
    assert message == 'MountVolume.SetUp failed for volume "v" : configmap "missing" not found'


async def test_pods_of_a_headless_service_find_each_other_before_they_are_ready(
    pods: Pods,
) -> None:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job": "train"}}
    await pods.create_object("v1", "Service", "train", spec=spec)
    script = """
        import socket, time
        listening = socket.create_server(("", 29500)) if socket.gethostname() == "node-0" else None
        for _ in range(300):
            try:
                peer = socket.create_connection(("node-0.train", 29500))
                break
            except OSError:
                time.sleep(0.1)
        print(socket.gethostname(), socket.getfqdn().split(".")[1], peer.getpeername()[1])
        if listening:
            listening.accept(), listening.accept()
    """
    never = {"readinessProbe": {"exec": {"command": ["false"]}}}
    for name in ("node-0", "node-1"):
        await pods.create(
            name, python(script, **never), hostname=name, subdomain="train", labels={"job": "train"}
        )
    for name in ("node-0", "node-1"):
        assert (await pods.end_of(name))["phase"] == "Succeeded", await pods.logs(name)
        assert await pods.logs(name) == f"{name} train 29500\n"


async def test_service_with_cluster_ip_leads_to_its_pods(pods: Pods) -> None:
    spec = {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]}
    await pods.create_object("v1", "Service", "model", spec=spec)
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    server = shell("exec python3 -m http.server 8080", readinessProbe=probe)
    await pods.create("server", server, labels={"app": "server"})
    await pods.running("server")
    script = """
        import time, urllib.request
        for _ in range(100):
            try:
                print(urllib.request.urlopen("http://model").status)
                break
            except OSError as error:
                last = error
                time.sleep(0.1)
        else:
            raise last
    """
    assert await pods.run("client", python(script)) == "200\n"


async def test_api_server_accepts_the_token_of_the_pod(pods: Pods, namespace: str) -> None:
    script = """
        import json, ssl, urllib.error, urllib.request
        folder = "/var/run/secrets/kubernetes.io/serviceaccount"
        headers = {"Authorization": "Bearer " + open(f"{folder}/token").read()}
        url = "https://kubernetes.default.svc/api/v1/namespaces"
        tls = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        try:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=tls)
        except urllib.error.HTTPError as error:
            print(json.load(error)["message"].split('"')[1])
    """
    printed = await pods.run("train", python(script))
    assert printed == f"system:serviceaccount:{namespace}:default\n"


async def test_kubectl_logs_options_select_lines(pods: Pods) -> None:
    await pods.run("train", shell("for i in 1 2 3 4; do echo line $i; done; echo bad >&2"))
    assert await pods.logs("train", "--tail=2") == "line 4\nbad\n"
    assert await pods.logs("train", "--limit-bytes=6") == "line 1"
    stamped = (await pods.logs("train", "--timestamps", "--tail=1")).split(" ", 1)
    assert stamped[0].endswith("Z")
    assert stamped[1] == "bad\n"
    assert await pods.logs("train", "--since-time=2099-01-01T00:00:00Z") == ""
