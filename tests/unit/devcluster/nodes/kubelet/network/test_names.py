from typing import Any

import pytest

from kftrainer.devcluster.nodes.kubelet.network.names import (
    endpoints,
    host_ports,
    records,
    service_ports,
)
from kftrainer.devcluster.nodes.sandbox.protocol import Backend, ServicePort


def service(name: str, ip: str = "None", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": spec.pop("namespace", "team")},
        "spec": {"clusterIP": ip, "selector": {"a": "b"}, **spec},
    }


def endpoint_slice(service: str, *ends: dict[str, Any], ports: Any = ()) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    return {
        "metadata": {"name": f"{service}-1", "namespace": "team", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [*ends],
        "ports": [*ports],
    }


def end(ip: str, hostname: str | None = None, *, ready: bool | None = True) -> dict[str, Any]:
    return {"addresses": [ip], "conditions": {"ready": ready}, "hostname": hostname}


def test_headless_service_has_names_of_ready_endpoints() -> None:
    slices = [
        endpoint_slice(
            "net",
            end("10.244.0.2", "node-0"),
            end("10.244.0.3", ready=None),
            end("10.244.0.4", ready=False),
        )
    ]
    assert records([service("net")], endpoints(slices)) == {
        "net.team.svc.cluster.local": ["10.244.0.2", "10.244.0.3"],
        "node-0.net.team.svc.cluster.local": ["10.244.0.2"],
        "10-244-0-3.net.team.svc.cluster.local": ["10.244.0.3"],
    }


def test_service_with_cluster_ip_has_one_address_even_without_endpoints() -> None:
    assert records([service("api", "10.0.0.7")], {}) == {"api.team.svc.cluster.local": ["10.0.0.7"]}


def test_external_name_has_no_record() -> None:
    assert records([service("out", "", type="ExternalName", externalName="x.y")], {}) == {}


def test_backends_have_the_port_of_the_same_name() -> None:
    ports = [{"name": "http", "port": 8080}, {"name": "other", "port": 9}]
    ready = endpoints([endpoint_slice("api", end("10.244.0.2"), ports=ports)])
    wanted = service("api", "10.0.0.7", ports=[{"name": "http", "port": 80}])
    assert service_ports([wanted], ready, apiserver_port=1) == [
        ServicePort("10.0.0.7", 80, (Backend("10.244.0.2", 8080),))
    ]


def test_endpoint_without_the_port_is_no_backend() -> None:
    slices = [endpoint_slice("api", end("10.244.0.2"), ports=[{"name": "other", "port": 9}])]
    wanted = service("api", "10.0.0.7", ports=[{"name": "http", "port": 80}])
    assert service_ports([wanted], endpoints(slices), apiserver_port=1) == [
        ServicePort("10.0.0.7", 80, ())
    ]


def test_service_of_the_api_server_leads_to_its_port() -> None:
    ports = [{"name": "https", "port": 443}]
    wanted = service("kubernetes", "10.0.0.1", namespace="default", selector=None, ports=ports)
    assert service_ports([wanted], {}, apiserver_port=6443) == [
        ServicePort("10.0.0.1", 443, (Backend("127.0.0.1", 6443),))
    ]


def test_annotated_service_leads_to_ports_of_this_machine() -> None:
    wanted = service("manager", "10.0.0.9", selector=None, ports=[{"port": 443}, {"port": 80}])
    wanted["metadata"]["annotations"] = {"kftrainer.dev/host-ports": "443=40123"}
    assert service_ports([wanted], {}, apiserver_port=1) == [
        ServicePort("10.0.0.9", 443, (Backend("127.0.0.1", 40123),)),
        ServicePort("10.0.0.9", 80, ()),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("443=1, 80=2", [(443, 1), (80, 2)]), ("", []), ("x=1,443=", []), ("443=70000", [])],
)
def test_invalid_host_ports_are_ignored(text: str, expected: list[tuple[int, int]]) -> None:
    assert list(host_ports(text)) == expected
