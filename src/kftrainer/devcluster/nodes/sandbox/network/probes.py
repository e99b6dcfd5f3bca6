"""Probes of pods, which only processes in the hub's network can reach."""

import asyncio
import os
from collections.abc import Mapping

MOST_BODY = 10 * 1024


async def tcp(ip: str, port: int, timeout: float) -> str:  # noqa: ASYNC109 - the probe's own setting
    """Connect to a port; return "" or why this failed."""
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(ip, port)
    except TimeoutError:
        return f"dial tcp {ip}:{port}: i/o timeout"
    except OSError as error:
        return f"dial tcp {ip}:{port}: connect: {os.strerror(error.errno or 0).lower()}"
    writer.close()
    return ""


async def http(
    url: str,
    headers: Mapping[str, str],
    timeout: float,  # noqa: ASYNC109
) -> tuple[int, str]:
    """Send GET; return the status code and the start of the body, or 0 and the reason."""
    import aiohttp  # imported by the first probe: it takes longer than the start of the server

    limit = aiohttp.ClientTimeout(total=timeout)
    connector = aiohttp.TCPConnector(ssl=False)  # as the kubelet, which does not verify either
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, connector=connector) as session,
            session.get(url, headers=dict(headers), allow_redirects=False) as response,
        ):
            body = await response.content.read(MOST_BODY)
            return response.status, body.decode(errors="replace")
    except TimeoutError:
        return 0, f'Get "{url}": context deadline exceeded'
    except aiohttp.ClientConnectorError as error:
        why = os.strerror(error.errno or 0).lower()
        return 0, f'Get "{url}": dial tcp {error.host}:{error.port}: connect: {why}'
    except (aiohttp.ClientError, ValueError) as error:
        return 0, f'Get "{url}": {error}'
