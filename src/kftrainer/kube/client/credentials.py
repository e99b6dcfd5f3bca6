"""API server address and credentials, from a kubeconfig or from the pod.

Files are read by kubernetes-asyncio. Tokens are refreshed here, and certificates are reloaded when
their files change; only certificates of exec plugins are read once.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import structlog
import yaml

from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.client.tls import Loaded, ReloadedTls, existing
from kftrainer.kube.clock import LOOP_CLOCK, Clock

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOME_KUBECONFIG = Path("~/.kube/config")
REFRESH_AFTER = 50.0  # seconds; the kubelet writes a new token long before the old one expires
REFRESH_TIMEOUT = 30.0  # seconds; all requests wait meanwhile
# Errors that kubernetes-asyncio does not catch when a file, or the output of a plugin or an OpenID
# provider, is malformed.
MALFORMED = (
    yaml.YAMLError,
    aiohttp.ClientError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)

log = structlog.get_logger()


class CredentialsError(KubeError):
    """No API server address or no credentials are available."""


class Credentials(Protocol):
    """Authentication of requests."""

    async def authorization(self) -> str | None:
        """Return the header of the next request; None if a client certificate is used."""
        ...

    async def renew(self, refused: str | None) -> bool:
        """Look for a replacement of the refused header; return False if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Connection:
    """Address, TLS context and credentials of an API server."""

    host: str  # with scheme, without trailing slash
    tls: ssl.SSLContext | None
    credentials: Credentials
    server_name: str | None = None  # in the server's certificate, if it is not the host
    proxy: str | None = None
    reloaded_tls: ReloadedTls | None = None  # used instead of `tls` if its files may change

    async def tls_of_new_connections(self) -> ssl.SSLContext | None:
        """Return the TLS context for a new connection."""
        if self.reloaded_tls is None:
            return self.tls
        return await self.reloaded_tls.context()


class ClientCertificate:
    """Credentials that are part of the TLS context, or no credentials."""

    async def authorization(self) -> str | None:
        """Return None: no header is needed."""
        return None

    async def renew(self, refused: str | None) -> bool:
        """Return False: there is no replacement."""
        return False


class RenewedToken:
    """An authorization header that is refreshed periodically and when it is refused.

    The argument of `fetch` is whether the last header was refused. If it fails or times out, the
    last good header stays.
    """

    def __init__(
        self, first: str | None, fetch: Callable[[bool], Awaitable[str | None]], clock: Clock
    ) -> None:
        self._header = first
        self._fetch = fetch
        self._clock = clock
        self._refreshed_at = clock.monotonic()
        self._refreshing = asyncio.Lock()
        self._renewals = 0

    async def authorization(self) -> str | None:
        """Return the current header, refreshed if due."""
        if self._is_due():
            async with self._refreshing:
                if self._is_due():  # not refreshed by another request meanwhile
                    await self._refresh(refused=False)
        return self._header

    async def renew(self, refused: str | None) -> bool:
        """Refresh now, unless another request has already found a new header."""
        renewals = self._renewals
        async with self._refreshing:
            # Do not repeat a refresh that another request has just tried without success.
            if self._header == refused and self._renewals == renewals:
                await self._refresh(refused=True)
                self._renewals += 1
        return self._header != refused

    def _is_due(self) -> bool:
        return self._clock.monotonic() - self._refreshed_at >= REFRESH_AFTER

    async def _refresh(self, *, refused: bool) -> None:
        try:
            async with asyncio.timeout(REFRESH_TIMEOUT):
                self._header = await self._fetch(refused) or self._header
        except TimeoutError:
            log.warning("credentials_not_refreshed", error=f"timed out after {REFRESH_TIMEOUT:g} s")
        except (CredentialsError, OSError) as error:
            log.warning("credentials_not_refreshed", error=str(error))
        self._refreshed_at = self._clock.monotonic()


async def load_connection(
    kubeconfig: Path | None = None, context: str | None = None, *, clock: Clock = LOOP_CLOCK
) -> Connection:
    """Return the connection from the given file, $KUBECONFIG, the pod or ~/.kube/config.

    The sources are tried in this order. The context applies to kubeconfigs only.
    """
    if kubeconfig is not None:
        return await from_kubeconfig(str(kubeconfig), context, clock=clock)
    if paths := os.environ.get("KUBECONFIG"):
        return await from_kubeconfig(paths, context, clock=clock)
    try:
        return await in_cluster(clock=clock)
    except CredentialsError as not_in_cluster:
        home = HOME_KUBECONFIG.expanduser()
        if not os.path.isfile(home):  # also False in a directory without access
            raise CredentialsError(
                "No cluster configured: pass --kubeconfig, set KUBECONFIG, or create "
                f"{HOME_KUBECONFIG} (not running in a pod either: {not_in_cluster})."
            ) from None
    return await from_kubeconfig(str(home), context, clock=clock)


async def in_cluster(folder: Path = SERVICE_ACCOUNT, *, clock: Clock = LOOP_CLOCK) -> Connection:
    """Return a pod's connection: service account from the folder, host from the environment."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader

    token_file = folder / "token"
    configuration = Configuration()
    try:
        InClusterConfigLoader(
            token_filename=str(token_file),
            cert_filename=str(folder / "ca.crt"),
            try_refresh_token=False,
        ).load_and_set(configuration)
        first = _token_in(token_file)
    except (ConfigException, OSError) as error:
        raise CredentialsError(str(error).rstrip(".")) from error

    async def fetch(_refused: bool) -> str:  # noqa: FBT001
        return _token_in(token_file)

    async def load() -> Loaded:
        return _loaded(configuration)

    return _connection(configuration, RenewedToken(first, fetch, clock), load, clock)


def _token_in(file: Path) -> str:
    token = file.read_text().strip()
    if not token:
        raise CredentialsError(f"{file} is empty")
    return f"Bearer {token}"


async def from_kubeconfig(
    paths: str, context: str | None = None, *, clock: Clock = LOOP_CLOCK
) -> Connection:
    """Return the connection of a context, by default the current one.

    `paths` are separated by colons.
    """
    user = _KubeconfigUser(paths, context)
    configuration = await user.load()
    first = user.header()
    files = paths.split(os.pathsep)

    async def load() -> Loaded:
        return _loaded(await user.load(), files)

    if first is not None:
        token = RenewedToken(first, user.fetch, clock)
        return _connection(configuration, token, load, clock, files)
    if user.has_plugin and not configuration.cert_file:
        raise CredentialsError(
            f"The exec plugin in {paths} returned neither a token nor a certificate."
        )
    return _connection(configuration, ClientCertificate(), load, clock, files)


class _KubeconfigUser:
    """The user of a kubeconfig context."""

    def __init__(self, paths: str, context: str | None) -> None:
        self._paths = paths
        self._context = context
        self._loader: KubeConfigLoader | None = None
        self.has_plugin = False

    async def load(self) -> "Configuration":
        """Read the file, and run its exec plugin if it has one."""
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config import ConfigException
        from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger

        paths = map(os.path.expanduser, self._paths.split(os.pathsep))
        if not any(map(os.path.isfile, paths)):
            raise CredentialsError(f"The kubeconfig does not exist: {self._paths}.")
        configuration = Configuration()
        try:
            merged = KubeConfigMerger(self._paths).config
            loader = KubeConfigLoader(merged, active_context=self._context, config_base_path=None)
            self.has_plugin = _has_plugin(merged, loader.current_context)
            await loader.load_and_set(configuration)
        except (ConfigException, AssertionError, *MALFORMED) as error:
            raise CredentialsError(
                f"The kubeconfig {self._paths} cannot be used: {_reason(error)}"
            ) from error
        self._loader = loader
        return configuration

    def header(self) -> str | None:
        """Return the authorization header, if there is a token."""
        return getattr(self._loader, "token", None)

    async def fetch(self, refused: bool) -> str | None:  # noqa: FBT001
        """Return the current header; a plugin runs only if its token expires or was refused."""
        if refused or not self.has_plugin:
            await self.load()
        elif self._loader is not None and hasattr(self._loader, "exec_plugin_expiry"):
            await self._run_plugin(self._loader)
        return self.header()

    async def _run_plugin(self, loader: "KubeConfigLoader") -> None:
        from kubernetes_asyncio.config import ConfigException

        try:
            await loader.load_from_exec_plugin()
        except (ConfigException, AssertionError, *MALFORMED) as error:
            raise CredentialsError(f"The exec plugin in {self._paths} failed: {error}") from error


def _reason(error: BaseException) -> str:
    # The messages of these errors are about Python, not about the file.
    if isinstance(error, TypeError | AttributeError | LookupError):
        return "it is malformed"
    return str(error)


def _has_plugin(merged: Any, context: Any) -> bool:
    user = merged["users"].get_with_name(context["context"].get("user"), safe=True)
    return user is not None and "exec" in user["user"]


def _connection(
    configuration: "Configuration",
    credentials: Credentials,
    load: Callable[[], Awaitable[Loaded]],
    clock: Clock,
    files: Sequence[str] = (),
) -> Connection:
    host: str = configuration.host or ""
    first = _loaded(configuration, files) if host.startswith("https:") else None
    return Connection(
        host=host,
        tls=first.context if first else None,
        credentials=credentials,
        server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
        reloaded_tls=ReloadedTls(first, load, clock) if first else None,
    )


def _loaded(configuration: "Configuration", files: Sequence[str] = ()) -> Loaded:
    """Build the TLS context, which depends on these files and on those that they name."""
    named = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return Loaded(_tls(configuration), existing((*files, *named)))


def _tls(configuration: "Configuration") -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except OSError as error:  # the base of all errors of the ssl module
        raise CredentialsError(f"A certificate or key cannot be used: {error}") from error
    # Python 3.13 started to reject the CAs of older clusters, which Go clients accept.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
