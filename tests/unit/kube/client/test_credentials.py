import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from kftrainer.kube.client.credentials import (
    REFRESH_AFTER,
    CredentialsError,
    RenewedToken,
    load_connection,
)
from tests.support.fake_clock import FakeClock


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, outside of any pod."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def kubeconfig(path: Path, server: str = "http://127.0.0.1:1", **cluster: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": {"token": path.name}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def set_user(path: Path, user: dict[str, Any]) -> None:
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(document))


async def token_of(kubeconfig: Path | None = None) -> str | None:
    return await (await load_connection(kubeconfig)).credentials.authorization()


async def test_missing_credentials_error_lists_every_location() -> None:
    with pytest.raises(CredentialsError) as raised:
        await load_connection()
    assert str(raised.value) == (
        "No cluster configured: pass --kubeconfig, set KUBECONFIG, or create ~/.kube/config "
        "(not running in a pod either: Service host/port is not set)."
    )


async def test_given_file_has_precedence_over_environment_and_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig(home / ".kube/config")
    assert await token_of() == "Bearer config"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(home / "environment")))
    assert await token_of() == "Bearer environment"
    assert await token_of(kubeconfig(home / "given")) == "Bearer given"


async def test_several_files_are_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [home / "missing", kubeconfig(home / "first"), kubeconfig(home / "second")]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    assert await token_of() == "Bearer first"


async def test_missing_file_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(home / ".kube/config")
    with pytest.raises(CredentialsError, match=r"The kubeconfig does not exist: .*/missing\."):
        await load_connection(home / "missing")
    monkeypatch.setenv("KUBECONFIG", str(home / "missing"))
    with pytest.raises(CredentialsError, match=r"The kubeconfig does not exist: .*/missing\."):
        await load_connection()


async def test_inaccessible_file_is_reported_as_missing(home: Path) -> None:
    with pytest.raises(CredentialsError, match=r"The kubeconfig does not exist: "):
        await load_connection(home / ("long" * 100))


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "{", "a: [", "current-context: x", "{users: 3, contexts: [], clusters: []}"],
)
async def test_invalid_kubeconfig_is_reported(home: Path, text: str) -> None:
    path = home / "file"
    path.write_text(text)
    with pytest.raises(CredentialsError, match=r"The kubeconfig .*/file cannot be used: ."):
        await load_connection(path)


async def test_invalid_certificate_is_reported(home: Path) -> None:
    (home / "ca.crt").write_text("no certificate")
    path = kubeconfig(home / "file", "https://127.0.0.1:1", **{"certificate-authority": "ca.crt"})
    with pytest.raises(CredentialsError, match="A certificate or key cannot be used"):
        await load_connection(path)


async def test_a_proxy_and_a_path_of_the_server_are_kept(home: Path) -> None:
    path = kubeconfig(home / "file", "http://host/clusters/one/", **{"proxy-url": "http://proxy"})
    connection = await load_connection(path)
    assert (connection.host, connection.proxy) == ("http://host/clusters/one", "http://proxy")
    assert connection.tls is None


async def test_a_kubeconfig_with_a_new_token_is_read_when_the_old_one_is_refused(
    home: Path,
) -> None:
    path = kubeconfig(home / "file")
    credentials = (await load_connection(path)).credentials
    assert not await credentials.renew("Bearer file"), "nothing has changed"
    path.write_text(path.read_text().replace("token: file", "token: other"))
    assert await credentials.renew("Bearer file")
    assert await credentials.authorization() == "Bearer other"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kubernetes-asyncio uses old names
async def test_openid_provider_that_closes_the_connection_is_reported(home: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1") as provider:
        host, port = provider.sockets[0].getsockname()
        config = {"client-id": "me", "client-secret": "", "refresh-token": "r"}
        config["idp-issuer-url"] = f"http://{host}:{port}"
        path = kubeconfig(home / "file")
        set_user(path, {"auth-provider": {"name": "oidc", "config": config}})
        with pytest.raises(CredentialsError, match="Server disconnected"):
            await load_connection(path)


EXEC_API = "client.authentication.k8s.io/v1"


def exec_answer(status: Any) -> str:
    return json.dumps({"apiVersion": EXEC_API, "kind": "ExecCredential", "status": status})


@pytest.mark.parametrize(
    "then",
    [
        "echo 'no idea' >&2; exit 3",
        "echo 'no JSON'",
        "echo 3",
        "echo '{}'",
        f"echo '{exec_answer({'token': 'new', 'expirationTimestamp': 'tomorrow'})}'",
        f"echo '{exec_answer({'token': 'new', 'expirationTimestamp': 3})}'",
        f"echo '{exec_answer(None)}'",
        None,
    ],
)
@pytest.mark.parametrize("refused", [False, True])
async def test_exec_plugin_that_starts_to_fail_does_not_fail_requests(
    home: Path, then: str | None, refused: bool
) -> None:
    program, path, clock = home / "plugin", kubeconfig(home / "file"), FakeClock()
    first = exec_answer({"token": "first", "expirationTimestamp": "2020-01-01T00:00:00Z"})
    program.write_text(f"#!/bin/sh\necho '{first}'\n")
    program.chmod(0o700)
    set_user(path, {"exec": {"apiVersion": EXEC_API, "command": str(program)}})
    user = (await load_connection(path, clock=clock)).credentials

    if then is None:
        program.unlink()
    else:
        program.write_text(f"#!/bin/sh\n{then}\n")
    await clock.advance(REFRESH_AFTER)
    with capture_logs() as logs:
        if refused:
            assert not await user.renew("Bearer first")
        assert await user.authorization() == "Bearer first"
    assert [each["event"] for each in logs] == ["credentials_not_refreshed"]


class Source:
    """Returns a new token each time, and fails on request."""

    def __init__(self) -> None:
        self.requests: list[bool] = []
        self.fails = False

    async def fetch(self, refused: bool) -> str:
        self.requests.append(refused)
        await asyncio.sleep(0)
        if self.fails:
            raise OSError("gone")
        return f"token {len(self.requests)}"


async def test_concurrent_requests_refresh_the_token_once() -> None:
    source, clock = Source(), FakeClock()
    token = RenewedToken("token 0", source.fetch, clock)
    for expected, refused in (("token 0", []), ("token 1", [False])):
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(token.authorization()) for _ in range(5)]
        assert {task.result() for task in reading} == {expected}
        assert source.requests == refused
        await clock.advance(REFRESH_AFTER)


async def test_concurrent_rejected_requests_refresh_the_token_once() -> None:
    source = Source()
    token = RenewedToken("token 0", source.fetch, FakeClock())
    async with asyncio.TaskGroup() as tasks:
        renewing = [tasks.create_task(token.renew("token 0")) for _ in range(5)]
    assert all(task.result() for task in renewing)
    assert source.requests == [True]
    assert await token.authorization() == "token 1"


async def test_the_last_good_token_is_kept_and_that_is_logged() -> None:
    source, clock = Source(), FakeClock()
    token = RenewedToken("token 0", source.fetch, clock)
    source.fails = True
    await clock.advance(REFRESH_AFTER)
    with capture_logs() as logs:
        assert [await token.authorization() for _ in range(3)] == ["token 0"] * 3
        assert not await token.renew("token 0")
    assert [each["event"] for each in logs] == ["credentials_not_refreshed"] * 2
    assert source.requests == [False, True], "not at every request"


async def test_hanging_token_lookup_times_out_and_keeps_the_last_valid_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(_refused: bool) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("kftrainer.kube.client.credentials.REFRESH_TIMEOUT", 0.01)
    clock = FakeClock()
    token = RenewedToken("token 0", hang, clock)
    await clock.advance(REFRESH_AFTER)
    with capture_logs() as logs:
        async with asyncio.timeout(30):
            assert await token.authorization() == "token 0"
            assert not await token.renew("token 0")
    assert [each["error"] for each in logs] == ["timed out after 0.01 s"] * 2


async def test_concurrent_rejected_requests_fail_to_refresh_once() -> None:
    source = Source()
    source.fails = True
    token = RenewedToken("token 0", source.fetch, FakeClock())
    async with asyncio.TaskGroup() as tasks:
        renewing = [tasks.create_task(token.renew("token 0")) for _ in range(5)]
    assert not any(task.result() for task in renewing)
    assert source.requests == [True]
    assert not await token.renew("token 0")
    assert source.requests == [True, True], "later it may be found"


async def test_lookup_without_a_result_keeps_the_token() -> None:
    async def nothing(_refused: bool) -> None:
        return None

    token = RenewedToken("token 0", nothing, FakeClock())
    assert not await token.renew("token 0")
    assert await token.authorization() == "token 0"
