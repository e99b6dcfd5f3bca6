from kftrainer.runtime.podset import Container, Endpoints, PodSet
from kftrainer.runtime.trace import NO_TRACE
from tests.support.objects import Object, replicated_job


def container(**body: object) -> Container:
    return Container({"name": "node", **body}, "path", NO_TRACE)


def pod_set(job: Object | None = None, count: int = 1, replicas: int = 1) -> PodSet:
    replicated = job or replicated_job("node")
    return PodSet("node", "trainer", count, replicas, replicated, "path", NO_TRACE)


def test_ports_are_identified_by_number_and_protocol() -> None:
    """D17."""
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


def test_mounts_are_identified_by_path() -> None:
    node = container(volumeMounts=[{"name": "a", "mountPath": "/x"}])
    node.mount({"name": "b", "mountPath": "/x"}, "test")
    node.mount({"name": "a", "mountPath": "/y"}, "test")
    assert node.volume_mounts == [
        {"name": "b", "mountPath": "/x"},
        {"name": "a", "mountPath": "/y"},
    ]


def test_variable_is_replaced_completely_at_its_index() -> None:
    node = container(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    reference = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    node.set_env(reference, "test")
    assert node.env == [reference, {"name": "B", "value": "2"}]


def test_secret_is_added_to_env_from_once() -> None:
    node = container()
    node.add_env_from({"secretRef": {"name": "a"}}, "test")
    node.add_env_from({"secretRef": {"name": "a"}}, "test")
    assert node.body["envFrom"] == [{"secretRef": {"name": "a"}}]


def test_hosts_include_all_replicas() -> None:
    """D28."""
    endpoints = Endpoints(pod_set(count=2, replicas=2), "job", "sub")
    names = ["job-node-0-0.sub", "job-node-0-1.sub", "job-node-1-0.sub", "job-node-1-1.sub"]
    assert list(endpoints) == names
    assert list(endpoints) == names


def test_endpoints_are_computed_while_iterating() -> None:
    pods = pod_set()
    endpoints = Endpoints(pods, "job", "sub")
    pods.set_count(10**12, "test")
    assert next(iter(endpoints)) == "job-node-0-0.sub"


def test_set_count_changes_parallelism_and_completions() -> None:
    pods = pod_set()
    pods.set_count(4, "test")
    assert pods.count == 4
    spec = pods.job["template"]["spec"]
    assert (spec["parallelism"], spec["completions"]) == (4, 4)


def test_pod_labels_and_annotations_are_added() -> None:
    job = replicated_job("node")
    job["template"]["spec"]["template"]["metadata"] = {"labels": {"a": "1"}}
    pods = pod_set(job)
    pods.set_pod_label("b", "2", "test")
    pods.set_pod_annotation("c", "3", "test")
    assert pods.pod["metadata"] == {"labels": {"a": "1", "b": "2"}, "annotations": {"c": "3"}}


def test_volumes_are_identified_by_name() -> None:
    pods = pod_set()
    pods.add_volume({"name": "a", "emptyDir": {}}, "test")
    pods.add_volume({"name": "a", "secret": {"secretName": "b"}}, "test")
    assert pods.volumes == [{"name": "a", "secret": {"secretName": "b"}}]


def test_pod_requests_follow_changes_of_the_template() -> None:
    pods = pod_set(replicated_job("node", resources={"requests": {"cpu": "1500m"}}))
    assert {name: str(each) for name, each in pods.single_pod_requests.items()} == {"cpu": "1500m"}


def test_init_containers_are_appended_or_replaced() -> None:
    job = replicated_job("node")
    pods = pod_set(job)
    first = pods.add_init_container({"name": "fetch", "image": "a"}, "test")
    first.set_env({"name": "A", "value": "1"}, "test")
    pods.add_init_container({"name": "check", "image": "b"}, "test")
    again = pods.add_init_container({"name": "check", "image": "c"}, "test")
    again.mount({"name": "data", "mountPath": "/data"}, "test")
    assert job["template"]["spec"]["template"]["spec"]["initContainers"] == [
        {"name": "fetch", "image": "a", "env": [{"name": "A", "value": "1"}]},
        {"name": "check", "image": "c", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    ]
    assert [each.name for each in pods.init_containers] == ["fetch", "check"]
    assert pods.init_container("fetch") is not None
    assert pods.init_container("node") is None


def test_resource_claims_are_added_once() -> None:
    pods = pod_set()
    pods.spec["resourceClaims"] = [{"name": "a", "resourceClaimName": "b"}]
    for _ in range(2):
        pods.add_resource_claim({"name": "gpu", "resourceClaimTemplateName": "gpus"}, "test")
        pods.containers[0].add_resource_claim("gpu", "test")
    assert pods.spec["resourceClaims"] == [
        {"name": "a", "resourceClaimName": "b"},
        {"name": "gpu", "resourceClaimTemplateName": "gpus"},
    ]
    assert pods.containers[0].resources == {"claims": [{"name": "gpu"}]}
