"""Configuration: the settings in the manager's configuration file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kftrainer.api import names
from kftrainer.kube.objects.duration import duration_seconds
from kftrainer.kube.objects.model import KubeModel

CONTROLLERS = {
    f"{names.TRAIN_JOB}.{names.GROUP}": 5,
    f"{names.TRAINING_RUNTIME}.{names.GROUP}": 1,
    f"{names.CLUSTER_TRAINING_RUNTIME}.{names.GROUP}": 1,
}
# The renew deadline must exceed the retry period by this factor, as in client-go.
RETRY_JITTER = 1.2
LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Allowed:
    """Description of the allowed values, for docs/configuration.md; a validator checks them."""

    words: str


class Duration(str):
    """A duration in Go's notation, such as 1m30s; keeps its original text."""

    __slots__ = ()

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return duration_seconds(self) or 0.0


def _duration(value: object) -> object:
    if not isinstance(value, str) or duration_seconds(value) is None:
        raise PydanticCustomError("duration", "must be a duration such as 15s or 1m30s")
    return Duration(value)


def _port(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value <= LAST_PORT:
        raise PydanticCustomError("port", "must be between 1 and 65535, or 0 to disable it")
    return value


def _address(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("address", "must be a string")
    _, colon, port = value.rpartition(":")
    if value not in ("", "0") and not (colon and port.isdigit() and int(port) <= LAST_PORT):
        raise PydanticCustomError("address", "must be host:port or :port, or 0 to disable it")
    return value


Span = Annotated[
    Duration,
    PlainValidator(_duration),
    Allowed("a duration such as `15s`, `1m30s` or `500ms`"),
]
Port = Annotated[int, BeforeValidator(_port), Allowed("`1` to `65535`, or `0`")]
Address = Annotated[
    str, BeforeValidator(_address), Field(max_length=255), Allowed("`host:port`, `:port` or `0`")
]
EndpointName = Annotated[
    str,
    Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$"),
    Allowed("letters, digits, `.`, `_` and `-`"),
]


class Settings(KubeModel):
    """Base class of settings; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _empty_is_unset(cls, document: object) -> object:
        """Treat a key without a value, such as `webhook:`, as not set."""
        if not isinstance(document, Mapping):
            return document
        return {key: value for key, value in document.items() if value is not None}


ClientNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=253)]],
    Allowed("names; only with `clientCAFile`"),
]


class Webhook(Settings):
    """The webhook server, which the API server calls before it stores TrainJobs and runtimes."""

    port: Annotated[
        Port,
        Field(description="Port of the webhook server. 0 disables it: objects are not validated."),
    ] = 9443
    host: Annotated[
        str, Field(max_length=253, description="Address to listen on. Empty: all addresses.")
    ] = ""
    client_ca_file: Annotated[
        str,
        Field(
            alias="clientCAFile",
            max_length=4096,
            description="PEM file with certificate authorities. A client must present a "
            "certificate that one of them has signed. The file is read again when it changes. "
            "Empty: no client certificate is required. The API server must be "
            "[configured](admission.md#require-the-api-servers-client-certificate) to present one.",
        ),
    ] = ""
    client_names: ClientNames = Field(
        default_factory=list,
        description="Common names: a client certificate must have one of them. Empty: every "
        "certificate of the authorities in `clientCAFile` is accepted.",
    )

    path_token_file: Annotated[
        str,
        Field(
            max_length=4096,
            description="File with [path tokens](admission.md#path-token), one per line. Only "
            "requests whose path ends with `/` and one of them are accepted. Empty: no token.",
        ),
    ] = ""

    @model_validator(mode="after")
    def _names_are_checked(self) -> Self:
        if self.client_names and not self.client_ca_file:
            raise PydanticCustomError("clients", "clientNames has no effect without clientCAFile")
        return self

    @property
    def address(self) -> str:
        """Address to listen on; empty if the server is disabled."""
        return f"{self.host}:{self.port}" if self.port else ""


class LeaderElection(Settings):
    """Leader election: only the leader reconciles; all replicas serve the webhook."""

    leader_elect: Annotated[
        bool,
        Field(description="Enables leader election. Required when more than one replica runs."),
    ] = False
    lease_duration: Annotated[
        Span,
        Field(
            description="Time after the last renewal until another replica takes over the Lease. "
            "Must be longer than `renewDeadline`."
        ),
    ] = Duration("15s")
    renew_deadline: Annotated[
        Span,
        Field(
            description="Time for which a leader tries to renew its Lease before its process "
            "exits. Must be longer than 1.2 times `retryPeriod`."
        ),
    ] = Duration("10s")
    retry_period: Annotated[
        Span, Field(description="Time between two attempts to acquire or renew the Lease.")
    ] = Duration("2s")
    resource_lock: Annotated[
        Literal["leases", ""], Field(description="Kind of the lock. Only Leases are supported.")
    ] = "leases"
    resource_name: Annotated[
        str, Field(min_length=1, max_length=253, description="Name of the Lease.")
    ] = names.GROUP
    resource_namespace: Annotated[
        str,
        Field(max_length=63, description="Namespace of the Lease. Empty: the manager's namespace."),
    ] = ""

    @model_validator(mode="after")
    def _durations_fit(self) -> Self:
        lease, renew, retry = (
            each.seconds for each in (self.lease_duration, self.renew_deadline, self.retry_period)
        )
        if self.leader_elect and not lease > renew > retry * RETRY_JITTER > 0:
            raise PydanticCustomError(
                "durations",
                "leaseDuration must be longer than renewDeadline, renewDeadline longer than "
                "1.2 times retryPeriod, and retryPeriod longer than 0",
            )
        return self


class Metrics(Settings):
    """The metrics server, with the path `/metrics`."""

    bind_address: Annotated[
        Address, Field(description="Address to serve metrics on; 0 disables them.")
    ] = ":8443"
    secure_serving: Annotated[
        bool,
        Field(
            description="true: HTTPS, only for clients that are authorized to `get` the path "
            "`/metrics`. false: HTTP without authorization."
        ),
    ] = True

    @property
    def address(self) -> str:
        """Address to listen on; the default if the setting is empty."""
        default: str = type(self).model_fields["bind_address"].default
        return self.bind_address or default


class Health(Settings):
    """The server of the health probes, over HTTP."""

    health_probe_bind_address: Annotated[
        Address, Field(description="Address to serve probes on; 0 disables them.")
    ] = ":8081"
    readiness_endpoint_name: Annotated[
        EndpointName, Field(description="Path of the readiness probe, without the slash.")
    ] = "readyz"
    liveness_endpoint_name: Annotated[
        EndpointName, Field(description="Path of the liveness probe, without the slash.")
    ] = "healthz"

    @property
    def address(self) -> str:
        """Address to listen on; the default if the setting is empty."""
        default: str = type(self).model_fields["health_probe_bind_address"].default
        return self.health_probe_bind_address or default


def _known_controller(value: object) -> object:
    if value not in CONTROLLERS:
        known = ", ".join(CONTROLLERS)
        raise PydanticCustomError(
            "controller", f"is not a kind with a controller: must be one of {known}"
        )
    return value


ControllerKind = Annotated[str, BeforeValidator(_known_controller)]


class Controller(Settings):
    """Concurrency of the controllers."""

    group_kind_concurrency: Annotated[
        Mapping[ControllerKind, Annotated[int, Field(ge=1)]],
        Field(
            description="Number of objects that are reconciled concurrently, by `Kind.group`. "
            "Kinds that are not listed have their defaults."
        ),
        Allowed("`1` or more for each kind"),
    ] = {}

    def concurrency(self, kind: str) -> int:
        """Return the number of concurrent reconciles for this kind."""
        key = f"{kind}.{names.GROUP}"
        return self.group_kind_concurrency.get(key, CONTROLLERS[key])


class CertManagement(Settings):
    """The certificate of the webhook server."""

    enable: Annotated[
        bool,
        Field(
            description="true: the manager issues and renews its own certificate. false: it reads "
            "`tls.crt` and `tls.key` from the folder of `--webhook-cert-dir`, by default "
            "`/tmp/k8s-webhook-server/serving-certs`."
        ),
    ] = True
    webhook_service_name: Annotated[
        str,
        Field(
            min_length=1, max_length=63, description="Service for which the certificate is issued."
        ),
    ] = "kubeflow-trainer-controller-manager"
    webhook_secret_name: Annotated[
        str,
        Field(
            min_length=1, max_length=253, description="Secret in which the certificate is stored."
        ),
    ] = "kubeflow-trainer-webhook-cert"  # noqa: S105  a name


class ClientConnection(Settings):
    """Limits on the manager's requests to the API server."""

    qps: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Average requests per second. 0: no limit in the client; API Priority and "
            "Fairness in the API server still applies.",
        ),
    ] = 0.0
    burst: Annotated[
        int,
        Field(ge=0, description="Requests that may be sent at once; at least 1 if `qps` is set."),
    ] = 100

    @model_validator(mode="after")
    def _burst_is_positive(self) -> Self:
        if self.qps and not self.burst:
            raise PydanticCustomError("burst", "burst must be at least 1 if qps is set")
        return self


class Admission(Settings):
    """Optional rules of the webhooks."""

    string_num_proc_per_node: Annotated[
        Literal["Warn", "Reject"],
        Field(
            description="What to do with a TrainJob whose `spec.trainer.numProcPerNode` is a "
            "string (`auto`, `cpu`, `gpu`), which release 2.1 accepts. Clients of Kubeflow Trainer "
            "2.2 and later, such as Kueue 0.17 and the current SDK, cannot decode it and fail to "
            "list TrainJobs. Use `Reject` where such clients are used."
        ),
    ] = "Warn"


def _without_duplicates(plugins: list[str]) -> list[str]:
    twice = sorted({each for each in plugins if plugins.count(each) > 1})
    if twice:
        raise PydanticCustomError("twice", f"duplicate names: {', '.join(twice)}")
    return plugins


PluginNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=253)]],
    AfterValidator(_without_duplicates),
    Allowed("names without duplicates"),
]


class Plugins(Settings):
    """The plugins that run."""

    enabled: PluginNames = Field(
        default_factory=list,
        description="Plugins of installed packages to run, in this order, after the built-in ones.",
    )
    disabled: PluginNames = Field(default_factory=list, description="Built-in plugins to disable.")


class Configuration(Settings):
    """All settings of the manager; settings that are missing have their defaults."""

    api_version: Literal["config.trainer.kubeflow.org/v1alpha1"]
    kind: Literal["Configuration"]
    webhook: Webhook = Webhook()
    leader_election: LeaderElection = LeaderElection()
    metrics: Metrics = Metrics()
    health: Health = Health()
    controller: Controller = Controller()
    cert_management: CertManagement = CertManagement()
    client_connection: ClientConnection = ClientConnection()
    plugins: Plugins = Plugins()
    admission: Admission = Admission()


DEFAULT = Configuration.parse({"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIGURATION})
