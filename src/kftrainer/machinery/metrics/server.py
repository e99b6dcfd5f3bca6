"""The server that Prometheus scrapes."""

import ssl

from kftrainer.machinery.metrics.authorization import Authorization, guarded
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.metrics.text_format import CONTENT_TYPE
from kftrainer.machinery.webhook.server import NOT_FOUND, HttpRequest, HttpResponse, WebServer

PATH = "/metrics"


def metrics_server(
    metrics: Metrics,
    address: str,
    *,
    tls: ssl.SSLContext | None,
    authorization: Authorization | None,
) -> WebServer:
    """Return a server for the metrics, over HTTPS if `tls` is given, for authorized clients."""

    async def page(request: HttpRequest) -> HttpResponse:
        if request.path != PATH:
            return NOT_FOUND
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(405, "Method Not Allowed\n", headers={"Allow": "GET, HEAD"})
        return HttpResponse(200, metrics.render(), content_type=CONTENT_TYPE)

    handler = page if authorization is None else guarded(page, authorization)
    return WebServer("metrics", address, handler, tls=tls)
