from kftrainer.runtime.podset import Container, Endpoints, PodSet
from kftrainer.runtime.trace import NO_TRACE
from tests.support.objects import Object, replicated_job


def container(**body: object) -> Container:
    return Container({"name": "node", **body}, "path", NO_TRACE)


def pod_set(job: Object | None = None, count: int = 1, replicas: int = 1) -> PodSet:
    made = job or replicated_job("node")
    return PodSet("node", "trainer", count, replicas, made, "path", NO_TRACE)


def test_d17_ports_are_told_apart_by_number_and_protocol() -> None:
    ports = [{"containerPort": 8080}, {"containerPort": 9090, "protocol": "UDP"}]
    node = container(ports=ports)
    node.add_port({"containerPort": 29500}, "test")
    node.add_port({"containerPort": 9090}, "test")
    node.add_port({"containerPort": 8080, "protocol": "TCP", "name": "web"}, "test")
    assert node.ports == [
        {"containerPort": 8080, "protocol": "TCP", "name": "web"},
        {"containerPort": 9090, "protocol": "UDP"},
        {"containerPort": 29500},
        {"containerPort": 9090},
    ]


def test_mounts_are_told_apart_by_their_paths() -> None:
    node = container(volumeMounts=[{"name": "a", "mountPath": "/x"}])
    node.mount({"name": "b", "mountPath": "/x"}, "test")
    node.mount({"name": "a", "mountPath": "/y"}, "test")
    assert node.volume_mounts == [
        {"name": "b", "mountPath": "/x"},
        {"name": "a", "mountPath": "/y"},
    ]


def test_a_variable_is_replaced_whole_and_in_its_place() -> None:
    node = container(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    reference = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    node.set_env(reference, "test")
    assert node.env == [reference, {"name": "B", "value": "2"}]


def test_a_secret_is_taken_as_environment_once() -> None:
    node = container()
    node.add_env_from({"secretRef": {"name": "a"}}, "test")
    node.add_env_from({"secretRef": {"name": "a"}}, "test")
    assert node.body["envFrom"] == [{"secretRef": {"name": "a"}}]


def test_d28_host_names_are_those_of_all_replicas() -> None:
    endpoints = Endpoints(pod_set(count=2, replicas=2), "job", "sub")
    names = ["job-node-0-0.sub", "job-node-0-1.sub", "job-node-1-0.sub", "job-node-1-1.sub"]
    assert list(endpoints) == names
    assert list(endpoints) == names


def test_endpoints_are_made_only_when_they_are_asked_for() -> None:
    pods = pod_set()
    endpoints = Endpoints(pods, "job", "sub")
    pods.set_count(10**12, "test")
    assert next(iter(endpoints)) == "job-node-0-0.sub"


def test_the_count_is_written_into_the_job() -> None:
    pods = pod_set()
    pods.set_count(4, "test")
    assert pods.count == 4
    spec = pods.job["template"]["spec"]
    assert (spec["parallelism"], spec["completions"]) == (4, 4)


def test_pods_get_labels_and_annotations_besides_those_they_have() -> None:
    job = replicated_job("node")
    job["template"]["spec"]["template"]["metadata"] = {"labels": {"a": "1"}}
    pods = pod_set(job)
    pods.set_pod_label("b", "2", "test")
    pods.set_pod_annotation("c", "3", "test")
    assert pods.pod["metadata"] == {"labels": {"a": "1", "b": "2"}, "annotations": {"c": "3"}}


def test_volumes_are_told_apart_by_their_names() -> None:
    pods = pod_set()
    pods.add_volume({"name": "a", "emptyDir": {}}, "test")
    pods.add_volume({"name": "a", "secret": {"secretName": "b"}}, "test")
    assert pods.volumes == [{"name": "a", "secret": {"secretName": "b"}}]


def test_requests_of_a_pod_are_those_of_the_template_as_it_stands() -> None:
    pods = pod_set(replicated_job("node", resources={"requests": {"cpu": "1500m"}}))
    assert {name: str(each) for name, each in pods.single_pod_requests.items()} == {"cpu": "1500m"}
