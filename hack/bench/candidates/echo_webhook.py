"""The least that a webhook can do: parse a body and send it back, over TLS.

Arguments: a folder with tls.crt and tls.key, and a port.
"""

import asyncio
import ssl
import sys
from pathlib import Path

import orjson
import uvloop
from aiohttp import web

MOST = 7 * 1024 * 1024


async def echo(request: web.Request) -> web.Response:
    """The body, as if it had been understood."""
    body = orjson.dumps(orjson.loads(await request.read()))
    return web.Response(body=body, content_type="application/json")


async def serve(folder: Path, port: int) -> None:
    """Answer until killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    application = web.Application(client_max_size=MOST)
    application.router.add_post("/{path:.*}", echo)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
