"""Encoding of requests, responses and events between client and server."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

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

MOST_BYTES = 8 * 1024 * 1024  # of one message

Message = Mapping[str, Any]


def encode(message: Message) -> bytes:
    """Return a message as one line; raise SandboxError if it is too long."""
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(line) > MOST_BYTES:
        raise SandboxError(f"a message of {len(line)} bytes is longer than {MOST_BYTES} bytes")
    return line


def encode_error(error: Exception) -> Message:
    """Return an exception in the form of a response."""
    match error:
        case ContainerStartError():
            return {"kind": "start", "reason": error.reason, "code": error.code, "text": str(error)}
        case TimeoutError():
            return {"kind": "timeout", "text": str(error)}
        case _:
            return {"kind": "error", "text": str(error)}


def decode_error(error: Message) -> Exception:
    """Return the exception that a response describes."""
    match error["kind"]:
        case "start":
            return ContainerStartError(error["reason"], error["text"], error["code"])
        case "timeout":
            return TimeoutError(error["text"])
        case _:
            return SandboxError(error["text"])


def encode_value(value: PodSandbox | ContainerSpec | ServicePort) -> Message:
    """Return a value of the protocol as JSON."""
    return asdict(value)


def decode_pod(value: Message) -> PodSandbox:
    """Return the pod that a request describes."""
    return PodSandbox(**value)


def decode_container(value: Message) -> ContainerSpec:
    """Return the container that a request describes."""
    mounts = [Mount(**mount) for mount in value["mounts"]]
    return ContainerSpec(**{**value, "mounts": mounts, "image": Image(**value["image"])})


def decode_service_port(value: Message) -> ServicePort:
    """Return the port of a Service that a request describes."""
    backends = [Backend(**backend) for backend in value["backends"]]
    return ServicePort(ip=value["ip"], port=value["port"], backends=backends)


def decode(line: bytes) -> dict[str, Any]:
    """Return the message in a line."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise SandboxError("a message is not a JSON object")
    return message
