"""Environment variables of containers on process nodes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.devcluster.nodes.kubelet.environment import (
    ConfigError,
    References,
    Sources,
    container_environment,
    expand,
    expand_all,
    references,
    runtime_environment,
)
from tests.support.node_pods import NODE, Object, config_map, container, pod, secret

NOTHING = Sources({}, {}, ())


def service(name: str, namespace: str = "team", **spec: Any) -> Object:
    ports = [{"port": 80}]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": "10.0.0.7", "ports": ports, **spec},
    }


def environment(
    *env: Object, sources: Sources = NOTHING, within: Object | None = None, **fields: Any
) -> dict[str, str]:
    """Return the environment of a container with these variables."""
    own = container(env=[*env], **fields)
    return container_environment(
        within or pod(own), own, sources, pod_ip="10.244.0.9", host_ip="127.0.0.1", node=NODE
    )


def field(name: str, path: str, **more: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path, **more}}}


def amount(name: str, resource: str, **more: str) -> Object:
    return {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, **more}}}


def key(kind: str, name: str, key: str, *, optional: bool = False) -> Object:
    reference = {"name": name, "key": key, "optional": optional}
    return {"name": "X", "valueFrom": {f"{kind}KeyRef": reference}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(C)", "$(C)"),
        ("$(A", "$(A"),
        ("$A", "$A"),
        ("$", "$"),
        ("100$", "100$"),
        ("$(A)$", "1$"),
        ("$($(A))", "$($(A))"),
        ("$()", "$()"),
        ("$\n$(A)", "$\n1"),
    ],
)
def test_expand_replaces_references(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@given(st.text())
def test_expand_keeps_escaped_text(text: str) -> None:
    assert expand(text.replace("$", "$$"), {}) == text


def test_expand_all_rejects_missing_and_empty_variables() -> None:
    assert expand_all("$(A)-x", {"A": "1"}) == "1-x"
    with pytest.raises(ConfigError, match=r"^missing value for B, C$"):
        expand_all("$(C)$(A)$(B)", {"A": "1", "B": ""})


def test_values_expand_earlier_variables_only() -> None:
    found = environment(
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)$(C)"},
        {"name": "C", "value": "3"},
        {"name": "EMPTY"},
    )
    assert found == {"A": "1", "B": "1$(C)", "C": "3", "EMPTY": ""}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "trainer"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "pod-uid"),
        ("metadata.labels['a/x']", "1"),
        ("metadata.labels['missing']", ""),
        ("metadata.annotations['note']", 'two\nlines "quoted"'),
        ("spec.nodeName", "process-0"),
        ("spec.host", "process-0"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "10.244.0.9"),
        ("status.podIPs", "10.244.0.9"),
        ("status.hostIP", "127.0.0.1"),
        ("status.hostIPs", "127.0.0.1"),
    ],
)
def test_field_reference_is_resolved(path: str, expected: str) -> None:
    assert environment(field("X", path)) == {"X": expected}


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (field("X", "status.phase"), "unsupported fieldPath: status.phase"),
        (field("X", "metadata.name", apiVersion="v2"), "unsupported pod version: v2"),
        (amount("X", "limits.nvidia.com/gpu"), "unsupported container resource : limits.nvidia"),
        (amount("X", "limits.cpu", containerName="other"), "container other not found"),
        (key("configMap", "c", "k"), 'configmap "c" not found'),
        (key("secret", "s", "k"), 'secret "s" not found'),
        (
            {"name": "X", "valueFrom": {"fileKeyRef": {"path": "p", "key": "k"}}},
            r"process nodes do not support fileKeyRef \(variable X\)",
        ),
        ({"name": "X", "value": "a\0b"}, "environment variable X contains a NUL byte"),
    ],
)
def test_unresolvable_variable_is_a_config_error(variable: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        environment(variable)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (amount("X", "limits.cpu"), "2"),
        (amount("X", "limits.cpu", divisor="1m"), "1500"),
        (amount("X", "limits.memory", divisor="1Mi"), "128"),
        (amount("X", "limits.memory", divisor="1Gi"), "1"),
        (amount("X", "requests.cpu"), "0"),
        (amount("X", "requests.memory"), "0"),
        (amount("X", "limits.ephemeral-storage"), str(2**30)),
        (amount("X", "limits.hugepages-2Mi"), "0"),
        (amount("X", "limits.cpu", divisor="0"), "2"),
    ],
)
def test_resource_reference_is_rounded_up_in_units_of_the_divisor(
    variable: Object, expected: str
) -> None:
    resources = {"limits": {"cpu": "1500m", "memory": "128Mi"}}
    assert environment(variable, resources=resources) == {"X": expected}


def test_missing_limit_is_that_of_the_pod_or_the_node() -> None:
    variables = [amount("CPU", "limits.cpu"), amount("MEMORY", "limits.memory", divisor="1Gi")]
    own = container(env=variables)
    limited = pod(own, resources={"limits": {"cpu": "3"}})
    assert environment(*variables, within=limited) == {"CPU": "3", "MEMORY": "16"}


def test_resource_of_another_container_is_found() -> None:
    other = container("other", resources={"limits": {"cpu": "5"}})
    variable = amount("X", "limits.cpu", containerName="other")
    assert environment(variable, within=pod(container(), initContainers=[other])) == {"X": "5"}


@pytest.mark.parametrize("kind", ["configMap", "secret"])
def test_key_of_an_object_is_the_value(kind: str) -> None:
    sources = Sources({"o": config_map("o", k="v")}, {"o": secret("o", k=b"v")}, ())
    assert environment(key(kind, "o", "k"), sources=sources) == {"X": "v"}


@pytest.mark.parametrize(("kind", "word"), [("configMap", "ConfigMap"), ("secret", "Secret")])
def test_missing_key_is_a_config_error_unless_optional(kind: str, word: str) -> None:
    sources = Sources({"o": config_map("o")}, {"o": secret("o")}, ())
    assert environment(key(kind, "o", "k", optional=True), sources=sources) == {}
    assert environment(key(kind, "none", "k", optional=True), sources=sources) == {}
    with pytest.raises(ConfigError, match=f"^couldn't find key k in {word} team/o$"):
        environment(key(kind, "o", "k"), sources=sources)


def test_secret_that_is_not_text_is_a_config_error() -> None:
    sources = Sources({}, {"o": secret("o", k=b"\xff")}, ())
    with pytest.raises(ConfigError, match=r"^key k in Secret team/o is not valid UTF-8"):
        environment(key("secret", "o", "k"), sources=sources)


def test_env_from_adds_all_keys_with_a_prefix_and_env_overrides_them() -> None:
    sources = Sources({"c": config_map("c", a="1", b="2")}, {"s": secret("s", a=b"3")}, ())
    env_from = [
        {"configMapRef": {"name": "c"}},
        {"prefix": "S_", "secretRef": {"name": "s"}},
        {"configMapRef": {"name": "missing", "optional": True}},
    ]
    found = environment({"name": "b", "value": "$(S_a)"}, sources=sources, envFrom=env_from)
    assert found == {"a": "1", "b": "3", "S_a": "3"}


def test_env_from_of_a_missing_object_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r'^secret "s" not found$'):
        environment(envFrom=[{"secretRef": {"name": "s"}}])


def test_services_become_variables_that_values_can_use() -> None:
    ports = [{"name": "web-ui", "port": 80}, {"port": 53, "protocol": "UDP"}]
    sources = Sources({}, {}, [service("my-app", ports=ports)])
    assert environment({"name": "X", "value": "$(MY_APP_SERVICE_HOST)"}, sources=sources) == {
        "MY_APP_SERVICE_HOST": "10.0.0.7",
        "MY_APP_SERVICE_PORT": "80",
        "MY_APP_SERVICE_PORT_WEB_UI": "80",
        "MY_APP_PORT": "tcp://10.0.0.7:80",
        "MY_APP_PORT_80_TCP": "tcp://10.0.0.7:80",
        "MY_APP_PORT_80_TCP_PROTO": "tcp",
        "MY_APP_PORT_80_TCP_PORT": "80",
        "MY_APP_PORT_80_TCP_ADDR": "10.0.0.7",
        "MY_APP_PORT_53_UDP": "udp://10.0.0.7:53",
        "MY_APP_PORT_53_UDP_PROTO": "udp",
        "MY_APP_PORT_53_UDP_PORT": "53",
        "MY_APP_PORT_53_UDP_ADDR": "10.0.0.7",
        "X": "10.0.0.7",
    }


def hosts(services: list[Object], **spec: Any) -> set[str]:
    own = container()
    found = environment(sources=Sources({}, {}, services), within=pod(own, **spec))
    return {f"{name}={value}" for name, value in found.items() if name.endswith("_HOST")}


def test_only_services_of_the_namespace_and_the_api_server_become_variables() -> None:
    services = [
        service("app"),
        service("headless", clusterIP="None"),
        service("external", clusterIP=""),
        service("elsewhere", "other"),
        service("kubernetes", "default", clusterIP="10.0.0.1"),
    ]
    api = "KUBERNETES_SERVICE_HOST=10.0.0.1"
    assert hosts(services) == {api, "APP_SERVICE_HOST=10.0.0.7"}
    assert hosts(services, enableServiceLinks=False) == {api}


def test_own_service_named_kubernetes_replaces_that_of_the_api_server() -> None:
    services = [service("kubernetes"), service("kubernetes", "default", clusterIP="10.0.0.1")]
    for order in (services, services[::-1]):
        assert hosts(order) == {"KUBERNETES_SERVICE_HOST=10.0.0.7"}


def test_runtime_environment_has_the_hostname() -> None:
    assert runtime_environment("node-0") == {"HOSTNAME": "node-0", "HOME": "/root"}


def test_references_are_those_of_environments_and_volumes() -> None:
    first = container(
        env=[{"name": "A", "value": "1"}, key("configMap", "c1", "k"), key("secret", "s1", "k")],
        envFrom=[{"configMapRef": {"name": "c2"}}, {"secretRef": {"name": "s2"}}],
    )
    init = container("init", env=[key("configMap", "c3", "k")])
    sources = [{"configMap": {"name": "c4"}}, {"secret": {"name": "s3"}}]
    volumes = [
        {"name": "a", "configMap": {"name": "c5"}},
        {"name": "b", "secret": {"secretName": "s4"}},
        {"name": "c", "projected": {"sources": [*sources, {"downwardAPI": {}}]}},
        {"name": "d", "emptyDir": {}},
    ]
    found = references(pod(first, initContainers=[init], volumes=volumes))
    assert found == References(
        frozenset({"c1", "c2", "c3", "c4", "c5"}), frozenset({"s1", "s2", "s3", "s4"})
    )
    assert references(pod()) == References(frozenset(), frozenset())
