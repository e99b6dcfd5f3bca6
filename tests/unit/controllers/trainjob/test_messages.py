import pytest

from kftrainer.controllers.trainjob.messages import LONGEST_MESSAGE, condition_message, same_message

WEBHOOK = 'failed calling webhook "mjobset.kb.io": failed to call webhook: Post "https://x:443/y": '
SAME = {
    "ports": (
        f"{WEBHOOK}read tcp 127.0.0.1:43210->10.96.0.7:9443: read: connection reset by peer",
        f"{WEBHOOK}read tcp 127.0.0.1:51112->10.96.0.8:9443: read: connection reset by peer",
    ),
    "ports-ipv6": (
        f"{WEBHOOK}dial tcp [fd00::1]:43210->[::1]:9443: connect: connection refused",
        f"{WEBHOOK}dial tcp [fd00::1]:43211->[::1]:9443: connect: connection refused",
    ),
    "x509-times": (
        "x509: certificate has expired or is not yet valid: current time 2026-11-18T00:35:25Z is "
        "after 2026-01-01T00:00:00Z",
        "x509: certificate has expired or is not yet valid: current time 2026-11-18T00:35:26Z is "
        "after 2026-01-01T00:00:00Z",
    ),
    "go-times": (
        "at 2026-11-18 00:35:25.123456789 +0000 UTC m=+0.000012 it failed",
        "at 2026-11-18 00:35:26.1 +0000 UTC m=+12.5 it failed",
    ),
    "offsets": ("at 2026-11-18T00:35:25.1+02:00 it", "at 2026-11-18T01:35:25+02:00 it"),
    "uids": (
        "Precondition failed: UID in precondition: 8f1b0d7c-93f0-4c6c-9a44-0d6ac1b4c8a1, gone",
        "Precondition failed: UID in precondition: 00000000-93f0-4c6c-9a44-0d6ac1b4c8a2, gone",
    ),
    "addresses": (
        "ValueError: <acme.Plan object at 0x7f3bc0a0>",
        "ValueError: <acme.Plan object at 0x7f3bc0ffff>",
    ),
    "request-ids": ("denied (request id: 1f-22.a)", "denied (request id: 9)"),
    "request-id-headers": ("denied X-Request-Id: abc", "denied X-Request-Id: def"),
    "trace-ids": (
        "trace 4bf92f3577b34da6a3ce929d0e0e4736",
        "trace 00f067aa0ba902b7a3ce929d0e0e4736",
    ),
    "resource-versions": ("at resourceVersion=1234 now", "at resourceVersion=99 now"),
    "resource-versions-in-words": ("resource version: 12", "resource version: 345"),
    "durations": ("took 1.234567s of 10s", "took 987.1ms of 10s"),
    "durations-compound": ("waited 1m30s", "waited 2h0m0s"),
    "durations-in-words": ("timed out after 3.2 seconds", "timed out after 1 second"),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_messages_that_differ_in_volatile_parts_are_the_same(one: str, other: str) -> None:
    assert one != other
    assert same_message(one, other)
    assert same_message(other, one)


DIFFERENT = {
    "quota": ("exceeded quota: q, used: 3, limited: 3", "exceeded quota: q, used: 4, limited: 4"),
    "names": ("JobSet a/b", "JobSet a/c"),
    "numbers": ("must be at least 1", "must be at least 2"),
    "fields": ("spec.replicatedJobs[0].name: x", "spec.replicatedJobs[1].name: x"),
    "service-port": ('Post "https://x:443/y"', 'Post "https://x:444/y"'),
    "words": ("deadbeef", "deadbeee"),
    "empty": ("", "x"),
    "long": ("x" * 600 + "a" * 1000, "y" * 600 + "a" * 1000),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_messages_that_differ_otherwise_are_different(one: str, other: str) -> None:
    assert not same_message(condition_message(one), condition_message(other))


@pytest.mark.parametrize("length", [0, 1, LONGEST_MESSAGE - 1, LONGEST_MESSAGE])
def test_short_messages_are_unchanged(length: int) -> None:
    assert condition_message("x" * length) == "x" * length


@pytest.mark.parametrize("length", [LONGEST_MESSAGE + 1, 5000])
def test_long_messages_are_shortened_once(length: int) -> None:
    shortened = condition_message("x" * length)
    assert (len(shortened), shortened[-5:]) == (LONGEST_MESSAGE, "x ...")
    assert condition_message(shortened) == shortened


def test_long_messages_with_volatile_parts_are_the_same() -> None:
    one = f"from 127.0.0.1:1: {'word ' * 1000}"
    other = f"from 127.0.0.1:54321: {'word ' * 1000}"
    assert same_message(condition_message(one), condition_message(other))


def test_volatile_part_at_the_place_of_shortening_is_the_same() -> None:
    for padding in range(LONGEST_MESSAGE - 90, LONGEST_MESSAGE):
        one, other = (f"{'x' * padding} 127.0.0.1:{port} {'y' * 50}" for port in (1, 54321))
        assert same_message(condition_message(one), condition_message(other)), padding
