"""The kubelet API of one node: logs, the list of pods and health, over TLS."""

import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.nodes.kubelet.pods.containers import ContainerRunner
from kftrainer.devcluster.nodes.kubelet.pods.manager import PodManager
from kftrainer.devcluster.nodes.kubelet.pods.states import Running, Waiting
from kftrainer.devcluster.nodes.kubelet.pods.worker import PodWorker
from kftrainer.devcluster.nodes.kubelet.serving.authorization import (
    is_authorized,
    subresources,
    user_in,
)
from kftrainer.devcluster.nodes.kubelet.serving.logs import (
    LogOptions,
    LogOptionsError,
    LogReader,
    parse_options,
)
from kftrainer.machinery.manager.clock import Clock

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NOT_SUPPORTED = "Process nodes serve logs, but not exec, attach and port-forward.\n"
UNSUPPORTED_PATHS = ("exec", "attach", "portForward", "run", "cri")


class KubeletApi:
    """Serves the kubelet API of one node."""

    def __init__(self, node: str, pods: PodManager, api: ApiClient, clock: Clock) -> None:
        self._node = node
        self._pods = pods
        self._api = api
        self._clock = clock
        # Requests end with their connections, or followed logs would be read for ever.
        self._runner = web.AppRunner(
            self._application(), access_log=None, handler_cancellation=True
        )

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._authorized])
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/pods", self._list_pods)
        application.router.add_get(
            "/containerLogs/{namespace}/{pod}/{container}", self._container_logs
        )
        for path in UNSUPPORTED_PATHS:
            application.router.add_route("*", f"/{path}/{{rest:.*}}", self._not_supported)
        return application

    async def start(self, port: int, tls: ssl.SSLContext) -> None:
        """Listen on this port of the loopback interface."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls, shutdown_timeout=1.0)
        await site.start()

    async def stop(self) -> None:
        """Close all connections."""
        await self._runner.cleanup()

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        certificate = request.transport and request.transport.get_extra_info("peercert")
        if not certificate:
            return web.Response(status=401, text="Unauthorized")
        user, wanted = user_in(certificate), subresources(request.path)
        try:
            allowed = await is_authorized(self._api, user, self._node, wanted)
        except (ApiError, UnreachableError) as error:
            return web.Response(status=500, text=f"Authorization error ({user.name}): {error}")
        if not allowed:
            message = (
                f"Forbidden (user={user.name}, verb=get, resource=nodes, "
                f"subresource(s)=[{' '.join(wanted)}])"
            )
            return web.Response(status=403, text=message)
        return await handler(request)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _list_pods(self, _: web.Request) -> web.Response:
        items = [dict(each) for each in self._pods.pods_of(self._node)]
        return web.json_response(
            {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}
        )

    async def _not_supported(self, _: web.Request) -> web.Response:
        return web.Response(status=501, text=NOT_SUPPORTED)

    async def _container_logs(self, request: web.Request) -> web.StreamResponse:
        namespace, pod, container = (
            request.match_info[name] for name in ("namespace", "pod", "container")
        )
        worker = self._pods.find(namespace, pod)
        if worker is None:
            return web.Response(status=404, text=f'pod "{pod}" does not exist')
        runner = worker.runner(container)
        if runner is None:
            message = f"container {container} is not valid for pod {pod}"
            return web.Response(status=400, text=message)
        try:
            options = parse_options(request.query, self._clock.now())
            attempt = attempt_to_read(runner, options, pod)
        except (LogOptionsError, NoLogError) as error:
            return web.Response(status=400, text=str(error))
        return await self._stream(request, worker, runner, attempt, options)

    async def _stream(
        self,
        request: web.Request,
        worker: PodWorker,
        runner: ContainerRunner,
        attempt: int,
        options: LogOptions,
    ) -> web.StreamResponse:
        def is_running() -> bool:
            return runner.latest == attempt and isinstance(runner.state.current, Running)

        log = worker.folder.log(runner.name, attempt)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the client has closed the connection
            async for chunk in LogReader(log, options, is_running, self._clock).chunks():
                await response.write(chunk)
            await response.write_eof()
        return response


class NoLogError(Exception):
    """The container has no log yet, or no earlier one."""


def attempt_to_read(runner: ContainerRunner, options: LogOptions, pod: str) -> int:
    """Return the attempt of which the log is read."""
    state, latest = runner.state, runner.latest
    is_waiting = isinstance(state.current, Waiting)
    if options.previous:
        # While a container waits for its restart, its latest attempt is the previous one.
        found = latest if is_waiting or latest is None else latest - 1
        if state.last is None or found is None or found < 0:
            raise NoLogError(
                f'previous terminated container "{runner.name}" in pod "{pod}" not found'
            )
        return found
    if latest is None or (isinstance(state.current, Waiting) and state.last is None):
        reason = state.current.reason if isinstance(state.current, Waiting) else "Unknown"
        raise NoLogError(f'container "{runner.name}" in pod "{pod}" is waiting to start: {reason}')
    return latest
