from kftrainer.devcluster.nodes.sandbox.host_ports import announced
from kftrainer.devcluster.nodes.sandbox.network.bridge import hardware_address
from kftrainer.devcluster.nodes.sandbox.network.proxy import Backends
from kftrainer.devcluster.nodes.sandbox.protocol import Backend, ServicePort

A, B, C = (Backend("10.244.0.2", port) for port in (1, 2, 3))


def test_each_connection_starts_with_the_next_backend() -> None:
    backends = Backends([A, B, C])
    assert [list(backends.order()) for _ in range(4)] == [
        [A, B, C], [B, C, A], [C, A, B], [A, B, C],
    ]  # fmt: skip


def test_no_backends() -> None:
    assert list(Backends([]).order()) == []


def test_only_backends_on_this_machine_are_announced() -> None:
    ports = [
        ServicePort("10.0.0.1", 443, [Backend("127.0.0.1", 6443)]),
        ServicePort("10.0.0.2", 80, [A, Backend("127.0.0.1", 8080)]),
    ]
    assert announced(ports) == {6443, 8080}


def test_the_hardware_address_of_a_pod_depends_only_on_its_ip() -> None:
    assert hardware_address("10.244.0.12") == "0a:58:0a:f4:00:0c"
