"""Raw HTTP over TLS, for malformed and partial requests."""

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from kftrainer.devcluster.processes.ports import LOOPBACK

ANSWER_WITHIN = 20.0  # a hang is longer than that, on however slow a machine


@dataclass(frozen=True)
class Reply:
    """A response of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_last: bool  # whether the server closes the connection after it


def trusting() -> ssl.SSLContext:
    """A TLS context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class RawTlsConnection:
    """A connection to a server; `open_raw_connection` creates one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send the data; a closed connection is ignored."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            return

    async def reply(self) -> Reply | None:
        """The next response; None if the connection was closed instead."""
        async with asyncio.timeout(ANSWER_WITHIN):
            try:
                head = await self._reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                pairs = (line.split(": ", 1) for line in lines[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                body = await self._reader.readexactly(int(headers["content-length"]))
            except (asyncio.IncompleteReadError, OSError):
                return None
        version, status, *_ = lines[0].split()
        is_last = version == "HTTP/1.0" or headers.get("connection") == "close"
        return Reply(int(status), headers, body, is_last)

    async def closed(self) -> None:
        """Wait until the server has closed it."""
        async with asyncio.timeout(ANSWER_WITHIN):
            try:
                while await self._reader.read(65536):
                    pass
            except OSError:
                return

    def half_close(self) -> None:
        """Shut down the sending side of the TCP connection, below TLS."""
        descriptor = os.dup(self._writer.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as same:
            same.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """Abort the connection."""
        self._writer.transport.abort()


async def open_raw_connection(port: int | None, tls: ssl.SSLContext | None) -> RawTlsConnection:
    """A new connection."""
    return RawTlsConnection(*await asyncio.open_connection(LOOPBACK, port, ssl=tls))


def post(path: str, body: bytes, **headers: str) -> bytes:
    """A request in the format of the API server, with other headers if given."""
    all_headers = {
        "Host": "webhook.test.svc",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def chunked(path: str, chunks: list[bytes]) -> bytes:
    """The same request in chunks, without a content length."""
    head = post(path, b"", Content_Length="", Transfer_Encoding="chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
