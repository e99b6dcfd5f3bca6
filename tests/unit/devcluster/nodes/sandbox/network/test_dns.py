import dns.message
import dns.rcode
import pytest

from kftrainer.devcluster.nodes.sandbox.network.dns import Zone

NAME = "pod.web.team.svc.cluster.local"
ZONE = Zone({NAME: ["10.244.0.2", "10.244.0.3"], "other.team.svc.cluster.local.": ["10.244.0.2"]})


def ask(name: str, kind: str) -> tuple[str, list[str]]:
    """Return the code and the records of a response."""
    data = ZONE.respond(dns.message.make_query(name, kind).to_wire(), 4096)
    assert data is not None
    response = dns.message.from_wire(data)
    records = [record.to_text() for rrset in response.answer for record in rrset]
    return dns.rcode.to_text(response.rcode()), sorted(records)


@pytest.mark.parametrize(
    ("name", "kind", "answer"),
    [
        (NAME, "A", ("NOERROR", ["10.244.0.2", "10.244.0.3"])),
        (NAME.upper(), "A", ("NOERROR", ["10.244.0.2", "10.244.0.3"])),
        ("other.team.svc.cluster.local", "A", ("NOERROR", ["10.244.0.2"])),
        (NAME, "AAAA", ("NOERROR", [])),
        (NAME, "MX", ("NOERROR", [])),
        ("web.team.svc.cluster.local", "A", ("NOERROR", [])),  # a folder of names
        ("nope.team.svc.cluster.local", "A", ("NXDOMAIN", [])),
        ("nope.team.svc.cluster.local", "AAAA", ("NXDOMAIN", [])),
        ("example.com", "A", ("NXDOMAIN", [])),
        ("3.0.244.10.in-addr.arpa", "PTR", ("NOERROR", [f"{NAME}."])),
        ("3.0.244.10.in-addr.arpa", "A", ("NOERROR", [])),
        ("9.0.244.10.in-addr.arpa", "PTR", ("NXDOMAIN", [])),
        ("244.10.in-addr.arpa", "PTR", ("NXDOMAIN", [])),
    ],
)
def test_answers(name: str, kind: str, answer: tuple[str, list[str]]) -> None:
    assert ask(name, kind) == answer


def test_several_names_of_an_address() -> None:
    assert ask("2.0.244.10.in-addr.arpa", "PTR") == (
        "NOERROR",
        ["other.team.svc.cluster.local.", f"{NAME}."],
    )


def test_a_long_answer_is_truncated_to_the_size_that_the_client_accepts() -> None:
    zone = Zone({"many": [f"10.244.1.{n}" for n in range(200)]})
    query = dns.message.make_query("many", "A").to_wire()
    short = zone.respond(query, 4096)
    assert short is not None
    assert len(short) <= 512
    assert dns.message.from_wire(short).flags & dns.flags.TC
    complete = zone.respond(query, 65535)
    assert complete is not None
    assert len(dns.message.from_wire(complete).answer[0]) == 200


@pytest.mark.parametrize("packet", [b"", b"\xff" * 30])
def test_packets_that_are_not_queries_have_no_answer(packet: bytes) -> None:
    assert ZONE.respond(packet, 4096) is None


def test_a_response_has_no_answer() -> None:
    response = dns.message.make_response(dns.message.make_query(NAME, "A"))
    assert ZONE.respond(response.to_wire(), 4096) is None
