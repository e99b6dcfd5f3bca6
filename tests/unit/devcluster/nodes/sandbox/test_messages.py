import pytest

from kftrainer.devcluster.nodes.sandbox import messages
from kftrainer.devcluster.nodes.sandbox.protocol import (
    Backend,
    ContainerSpec,
    ContainerStartError,
    Image,
    Mount,
    PodSandbox,
    SandboxError,
    ServicePort,
)


def sent(value: messages.Message) -> messages.Message:
    return messages.decode(messages.encode(value))


def test_values_are_equal_after_decoding() -> None:
    pod = PodSandbox("uid", "10.244.0.2", "host", host_network=True)
    assert messages.decode_pod(sent(messages.encode_value(pod))) == pod
    port = ServicePort("10.0.0.1", 443, [Backend("127.0.0.1", 6443)])
    assert messages.decode_service_port(sent(messages.encode_value(port))) == port
    image = Image(["/bin"], ["/root/x"], {"A": "ü"}, ["sh"])
    spec = ContainerSpec(
        "c", "uid", ["a"], {"A": "\n"}, "/", [Mount("/x", None, size="1m")], image, "/log", 1, 2
    )
    assert messages.decode_container(sent(messages.encode_value(spec))) == spec


@pytest.mark.parametrize(
    "error",
    [ContainerStartError("Reason", "text", 128), TimeoutError("text"), SandboxError("text")],
)
def test_errors_are_equal_after_decoding(error: Exception) -> None:
    decoded = messages.decode_error(sent(messages.encode_error(error)))
    assert (type(decoded), str(decoded), vars(decoded)) == (type(error), str(error), vars(error))


def test_a_message_is_one_line_of_limited_length() -> None:
    assert messages.encode({"text": "a\nb"}).count(b"\n") == 1
    with pytest.raises(SandboxError, match="longer than 8388608 bytes"):
        messages.encode({"text": "a" * messages.MOST_BYTES})


def test_a_message_must_be_an_object() -> None:
    with pytest.raises(SandboxError):
        messages.decode(b"[]\n")
