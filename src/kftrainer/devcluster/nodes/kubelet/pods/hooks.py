"""Lifecycle hooks of containers, and the ports that hooks and probes refer to."""

from dataclasses import dataclass

from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.devcluster.nodes.sandbox.protocol import Sandbox, SandboxError
from kftrainer.machinery.manager.clock import Clock

HOOK_TIMEOUT = 3600.0  # seconds; preStop hooks end with the grace period
FIRST_FAILURE = 400


@dataclass(frozen=True, slots=True)
class Target:
    """A running container that hooks and probes act on."""

    sandbox: Sandbox
    clock: Clock
    container: Object
    id: str
    ip: str

    def port(self, value: object) -> int | None:
        """Return the number of a port, which may be given by its name."""
        if isinstance(value, int):
            return value
        named = {each.get("name"): each for each in self.container.get("ports") or ()}
        text = str(value)
        if text in named:
            return int(named[text]["containerPort"])
        return int(text) if text.isdecimal() else None

    def url(self, action: Object) -> str | None:
        """Return the URL of an httpGet action; None if its port is not known."""
        port = self.port(action["port"])
        scheme = str(action.get("scheme", "HTTP")).lower()
        path = str(action.get("path") or "/")
        slash = "" if path.startswith("/") else "/"
        return (
            None
            if port is None
            else f"{scheme}://{action.get('host') or self.ip}:{port}{slash}{path}"
        )


def headers(action: Object) -> dict[str, str]:
    """Return the headers of an httpGet action."""
    return {each["name"]: each["value"] for each in action.get("httpHeaders") or ()}


async def run_hook(target: Target, hook: Object) -> str:
    """Run a postStart or preStop hook; return "" or why it failed."""
    if "exec" in hook:
        return await _exec(target, hook["exec"].get("command") or ())
    if "httpGet" in hook:
        url = target.url(hook["httpGet"])
        if url is None:
            return f"unknown port {hook['httpGet']['port']!r}"
        sent = headers(hook["httpGet"])
        status, body = await target.sandbox.probe_http(url, sent, HOOK_TIMEOUT)
        if status == 0:
            return body
        return f"HTTP status {status}" if status >= FIRST_FAILURE else ""
    if "sleep" in hook:
        await target.clock.sleep(hook["sleep"]["seconds"])
    return ""


async def _exec(target: Target, command: object) -> str:
    argv = [str(each) for each in command] if isinstance(command, list | tuple) else []
    shown = " ".join(argv)
    try:
        result = await target.sandbox.exec(target.id, argv, HOOK_TIMEOUT)
    except TimeoutError:
        return f"command '{shown}' timed out"
    except SandboxError as error:
        return str(error)
    if result.code == 0:
        return ""
    return f"command '{shown}' exited with {result.code}: {result.output.strip()}"
