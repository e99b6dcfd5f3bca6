"""The DNS server of the pods, in the sandbox's hub."""

import asyncio
import struct
from collections.abc import Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address
from types import TracebackType
from typing import Self, cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.reversename
import dns.rrset

ADDRESS = "10.0.0.10"
PORT = 53
TTL = 5  # as CoreDNS in a cluster
MOST_UDP_BYTES = 4096
IDLE_SECONDS = 10.0

Records = Mapping[str, Sequence[str]]


class Zone:
    """The names that resolve, and the answers to queries. There are no others: no forwarding."""

    def __init__(self, records: Records) -> None:
        self._addresses = {name.lower().rstrip("."): tuple(ips) for name, ips in records.items()}
        self._names: dict[str, list[str]] = {}
        for name, ips in self._addresses.items():
            for ip in ips:
                self._names.setdefault(ip, []).append(name)
        # Names above existing names exist too, without records.
        self._empty = {
            name.split(".", depth)[-1]
            for name in self._addresses
            for depth in range(1, name.count(".") + 1)
        }

    def _pointers(self, name: dns.name.Name) -> list[str]:
        try:
            address = str(IPv4Address(dns.reversename.to_address(name)))
        except (dns.exception.DNSException, AddressValueError):
            return []
        return [f"{each}." for each in self._names.get(address, [])]

    def _exists(self, name: str) -> bool:
        return name in self._addresses or name in self._empty

    def answer(self, query: dns.message.Message) -> dns.message.Message:
        """Return the response to a query."""
        response = dns.message.make_response(query, recursion_available=True)
        response.flags |= dns.flags.AA
        if query.opcode() != dns.opcode.QUERY or len(query.question) != 1:
            response.set_rcode(dns.rcode.NOTIMP)
            return response
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        pointers = self._pointers(question.name)
        data: Sequence[str] = []
        kind = dns.rdatatype.A
        if question.rdtype in {dns.rdatatype.A, dns.rdatatype.ANY}:
            data = self._addresses.get(name, ())
        if question.rdtype == dns.rdatatype.PTR:
            kind, data = dns.rdatatype.PTR, pointers
        if data:
            response.answer.append(dns.rrset.from_text(question.name, TTL, "IN", kind, *data))
        elif not pointers and not self._exists(name):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response

    def respond(self, data: bytes, most: int) -> bytes | None:
        """Return the response to a packet; None for packets that are not queries."""
        try:
            query = dns.message.from_wire(data)
        except dns.exception.DNSException:
            return None
        if query.flags & dns.flags.QR:
            return None
        limit = min(most, max(512, query.payload)) if most == MOST_UDP_BYTES else most
        response = self.answer(query)
        try:
            return response.to_wire(max_size=limit)
        except dns.exception.TooBig:
            response.answer.clear()
            response.flags |= dns.flags.TC  # the client asks again by TCP
            return response.to_wire(max_size=limit)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: "NameServer") -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        response = self._server.zone.respond(data, MOST_UDP_BYTES)
        if response is not None and self._transport is not None:
            self._transport.sendto(response, addr)


class NameServer:
    """Serves a zone by UDP and TCP."""

    def __init__(self) -> None:
        self.zone = Zone({})

    def replace(self, records: Records) -> None:
        """Replace the zone."""
        self.zone = Zone(records)

    async def __aenter__(self) -> Self:
        """Start to serve."""
        loop = asyncio.get_running_loop()
        self._udp, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self), local_addr=(ADDRESS, PORT)
        )
        self._tcp = await asyncio.start_server(self._connection, ADDRESS, PORT)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop to serve."""
        self._udp.close()
        self._tcp.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    (length,) = struct.unpack("!H", await reader.readexactly(2))
                    response = self.zone.respond(await reader.readexactly(length), 65535)
                if response is None:
                    return
                writer.write(struct.pack("!H", len(response)) + response)
                await writer.drain()
        except (TimeoutError, EOFError, ConnectionError):
            return
        finally:
            writer.close()
