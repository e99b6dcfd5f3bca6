"""DNS records and Service ports, computed from Services and EndpointSlices. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kftrainer.devcluster.nodes.kubelet.network.hosts import CLUSTER_DOMAIN
from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.devcluster.nodes.sandbox.protocol import Backend, ServicePort

SERVICE_NAME = "kubernetes.io/service-name"
HOST_PORTS = "kftrainer.dev/host-ports"
HEADLESS = ("None", "")
LOOPBACK = "127.0.0.1"
Key = tuple[str, str]  # namespace and name of a Service
LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ready endpoint of a Service, with its ports by name."""

    ip: str
    hostname: str
    ports: Mapping[str, int]


def endpoints(slices: Iterable[Object]) -> dict[Key, list[Endpoint]]:
    """Return the ready endpoints of each Service, in a stable order."""
    found: dict[Key, set[tuple[str, str, tuple[tuple[str, int], ...]]]] = defaultdict(set)
    for each in slices:
        metadata = each["metadata"]
        service = (metadata.get("labels") or {}).get(SERVICE_NAME)
        if service is None or each.get("addressType") != "IPv4":
            continue
        ports = tuple(
            (port.get("name") or "", port["port"])
            for port in each.get("ports") or ()
            if port.get("port") and port.get("protocol", "TCP") == "TCP"
        )
        for endpoint in each.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                key = (metadata["namespace"], service)
                found[key].add((endpoint["addresses"][0], endpoint.get("hostname") or "", ports))
    return {
        key: [Endpoint(ip, hostname, dict(ports)) for ip, hostname, ports in sorted(members)]
        for key, members in found.items()
    }


def records(
    services: Iterable[Object], ready: Mapping[Key, Sequence[Endpoint]]
) -> dict[str, list[str]]:
    """Return the IPv4 addresses by name: of Services, and of the endpoints of headless ones.

    An endpoint without hostname is named after its address, as CoreDNS does.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for service in services:
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        domain = f"{key[1]}.{key[0]}.svc.{CLUSTER_DOMAIN}"
        ip = service["spec"].get("clusterIP", "")
        if service["spec"].get("type") == "ExternalName":
            continue
        if ip not in HEADLESS:
            found[domain].append(ip)
            continue
        for endpoint in ready.get(key, ()):
            label = endpoint.hostname or endpoint.ip.replace(".", "-")
            for name in (domain, f"{label}.{domain}"):
                if endpoint.ip not in found[name]:
                    found[name].append(endpoint.ip)
    return dict(found)


def service_ports(
    services: Iterable[Object], ready: Mapping[Key, Sequence[Endpoint]], *, apiserver_port: int
) -> list[ServicePort]:
    """Return the TCP ports of all Services with a cluster IP, with their backends."""
    return [
        ServicePort(service["spec"]["clusterIP"], port["port"], tuple(backends))
        for service in services
        if service["spec"].get("clusterIP", "") not in HEADLESS
        for port in service["spec"].get("ports") or ()
        if port.get("protocol", "TCP") == "TCP"
        for backends in [_backends(service, port, ready, apiserver_port)]
    ]


def _backends(
    service: Object, port: Object, ready: Mapping[Key, Sequence[Endpoint]], apiserver_port: int
) -> list[Backend]:
    key = (service["metadata"]["namespace"], service["metadata"]["name"])
    if key == ("default", "kubernetes"):
        return [Backend(LOOPBACK, apiserver_port)]
    if not service["spec"].get("selector"):
        annotations = service["metadata"].get("annotations") or {}
        on_host = dict(host_ports(annotations.get(HOST_PORTS, "")))
        if port["port"] in on_host:
            return [Backend(LOOPBACK, on_host[port["port"]])]
    name = port.get("name") or ""
    return [
        Backend(endpoint.ip, endpoint.ports[name])
        for endpoint in ready.get(key, ())
        if name in endpoint.ports
    ]


def host_ports(text: str) -> Iterator[tuple[int, int]]:
    """Yield ports of a Service and ports of this machine from `443=40123,8080=40124`.

    Parts that are not of this form are ignored, as they come from an annotation.
    """
    for part in text.split(","):
        left, _, right = (each.strip() for each in part.partition("="))
        if all(each.isdecimal() and 0 < int(each) <= LAST_PORT for each in (left, right)):
            yield int(left), int(right)
