"""PodSet and Container, which plugins change in place; NodeLayout, which PodSets train."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kftrainer.api import names
from kftrainer.kube.objects.quantity import Quantity
from kftrainer.runtime.object_builders import (
    Piece,
    by_mount_path,
    by_name,
    by_port,
    indices_by_name,
    upsert,
)
from kftrainer.runtime.resources.pod_requests import pod_requests
from kftrainer.runtime.trace import Trace

Body = dict[str, Any]  # a mutable part of the template


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Jobs of the template whose pods are the nodes of a training.

    By default, the nodes are the pods of the job with the step `trainer`. With `worker`, they are
    the pods of the job with this name, and the job named `launcher` starts the processes there.
    """

    worker: str | None = None
    launcher: str | None = None
    launcher_is_node: bool = False  # whether the launcher counts as one of the nodes

    def container_names(self, job_name: str) -> tuple[str, ...]:
        """Return the possible names of the training container in this job, preferred first."""
        if job_name == self.launcher:
            return names.CONTAINER_NODE, job_name
        return (names.CONTAINER_NODE,)

    def workers(self, num_nodes: int, *, has_launcher: bool) -> int:
        """Return the number of workers for this number of nodes."""
        return num_nodes - (self.launcher_is_node and has_launcher)


TRAINER_ONLY = NodeLayout()


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the template.

    `source` is the field that a value comes from, for `--explain`.
    """

    body: Body
    path: str
    trace: Trace

    @property
    def name(self) -> str:
        """Name of the container."""
        name: str = self.body["name"]
        return name

    @property
    def env(self) -> list[Piece]:
        """Current environment variables."""
        return self.body.get("env") or []

    @property
    def ports(self) -> list[Piece]:
        """Current ports."""
        return self.body.get("ports") or []

    @property
    def volume_mounts(self) -> list[Piece]:
        """Current volume mounts."""
        return self.body.get("volumeMounts") or []

    @property
    def resources(self) -> Mapping[str, Any]:
        """Resources; those of the trainer include the TrainJob's resourcesPerNode."""
        return self.body.get("resources") or {}

    def set(self, field_name: str, value: object, source: str) -> None:
        """Replace a field, such as the image."""
        self.body[field_name] = value
        self.trace.note(f"{self.path}.{field_name}", source)

    def set_env(self, variable: Piece, source: str) -> None:
        """Add a variable, or replace the one with the same name."""
        self.set_envs([(variable, source)])

    def set_envs(self, env: Sequence[tuple[Piece, str]]) -> None:
        """Add or replace several variables, each with its source, in linear time."""
        variables = self._list("env")
        indices = indices_by_name(variables)
        for variable, source in env:
            index = indices.setdefault(variable["name"], len(variables))
            variables[index : index + 1] = [variable]
            self.trace.note(f"{self.path}.env[{variable['name']}]", source)

    def add_env_from(self, origin: Piece, source: str) -> None:
        """Add all keys of a Secret or ConfigMap as variables."""
        if origin not in self._list("envFrom"):
            self._list("envFrom").append(origin)
        self.trace.note(f"{self.path}.envFrom", source)

    def add_port(self, port: Piece, source: str) -> None:
        """Add a port, or replace the one with the same number and protocol."""
        upsert(self._list("ports"), port, by_port)
        self.trace.note(f"{self.path}.ports[{port['containerPort']}]", source)

    def mount(self, mount: Piece, source: str) -> None:
        """Add a mount, or replace the one at the same path."""
        upsert(self._list("volumeMounts"), mount, by_mount_path)
        self.trace.note(f"{self.path}.volumeMounts[{mount['mountPath']}]", source)

    def add_resource_claim(self, name: str, source: str) -> None:
        """Give the container access to the devices of a resource claim of its pod."""
        claims = list(self.resources.get("claims") or ())
        if all(each.get("name") != name for each in claims):  # it may select one of its requests
            claims.append({"name": name})
        self.body["resources"] = {**self.resources, "claims": claims}
        self.trace.note(f"{self.path}.resources.claims[{name}]", source)

    def _list(self, field_name: str) -> list[Any]:
        """Return a list of the body, creating it if it is missing."""
        found = self.body.get(field_name)
        if found is None:
            found = self.body[field_name] = []
        items: list[Any] = found
        return items


@dataclass(slots=True)
class PodSet:
    """The pods of one replicated job; `job` is the job in the template."""

    name: str
    ancestor: str | None  # the step of a TrainJob that the job is labelled as, if any
    count: int  # pods in each replica
    replicas: int
    job: Body
    path: str
    trace: Trace
    containers: list[Container] = field(init=False)
    init_containers: list[Container] = field(init=False)
    endpoints: Iterable[str] = ()  # host names, computed while iterating

    def __post_init__(self) -> None:
        self.containers = self._containers("containers")
        self.init_containers = self._containers("initContainers")

    @property
    def total(self) -> int:
        """Number of pods in all replicas."""
        return self.count * self.replicas

    @property
    def pod(self) -> Body:
        """Pod template."""
        pod: Body = self.job["template"]["spec"]["template"]
        return pod

    @property
    def spec(self) -> Body:
        """Pod spec."""
        spec: Body = self.pod["spec"]
        return spec

    @property
    def volumes(self) -> list[Piece]:
        """Current volumes of the pod."""
        return self.spec.get("volumes") or []

    @property
    def single_pod_requests(self) -> dict[str, Quantity]:
        """Return the current effective requests of one pod."""
        return pod_requests(self.spec)

    def container(self, name: str) -> Container | None:
        """Return the container with this name, or None."""
        return next((each for each in self.containers if each.name == name), None)

    def init_container(self, name: str) -> Container | None:
        """Return the init container with this name, or None."""
        return next((each for each in self.init_containers if each.name == name), None)

    def set_count(self, count: int, source: str) -> None:
        """Set the number of pods in each replica."""
        self.count = count
        job_spec = self.job["template"]["spec"]
        job_spec["parallelism"] = job_spec["completions"] = count
        self.trace.note(f"{self.path}.template.spec.parallelism", source)
        self.trace.note(f"{self.path}.template.spec.completions", source)

    def add_volume(self, volume: Piece, source: str) -> None:
        """Add a volume, or replace the one with the same name."""
        volumes = self.spec["volumes"] = self.volumes  # the field may be missing or null
        upsert(volumes, volume, by_name)
        self.trace.note(f"{self._pod_path}.spec.volumes[{volume['name']}]", source)

    def add_resource_claim(self, claim: Piece, source: str) -> None:
        """Add a resource claim to the pods, or replace the one with the same name."""
        claims = self.spec["resourceClaims"] = self.spec.get("resourceClaims") or []
        upsert(claims, claim, by_name)
        self.trace.note(f"{self._pod_path}.spec.resourceClaims[{claim['name']}]", source)

    def add_init_container(self, body: Body, source: str) -> Container:
        """Add an init container that runs after the existing ones, or replace one of this name."""
        found = self.spec["initContainers"] = self.spec.get("initContainers") or []
        upsert(found, body, by_name)
        self.init_containers = self._containers("initContainers")
        self.trace.note(f"{self._pod_path}.spec.initContainers[{body['name']}]", source)
        return next(each for each in self.init_containers if each.name == body["name"])

    def set_pod_label(self, key: str, value: str, source: str) -> None:
        """Set a label of the pods."""
        self._set_pod_metadata("labels", key, value, source)

    def set_pod_annotation(self, key: str, value: str, source: str) -> None:
        """Set an annotation of the pods."""
        self._set_pod_metadata("annotations", key, value, source)

    def hosts(self, job_name: str, subdomain: str) -> Iterator[str]:
        """Yield the host names of all pods, replica by replica."""
        for replica in range(self.replicas):
            head = f"{job_name}-{self.name}-{replica}-"
            for index in range(self.count):
                yield f"{head}{index}.{subdomain}"

    @property
    def _pod_path(self) -> str:
        return f"{self.path}.template.spec.template"

    def _set_pod_metadata(self, kind: str, key: str, value: str, source: str) -> None:
        metadata = self.pod["metadata"] = self.pod.get("metadata") or {}
        metadata[kind] = {**(metadata.get(kind) or {}), key: value}
        self.trace.note(f"{self._pod_path}.metadata.{kind}[{key}]", source)

    def _containers(self, kind: str) -> list[Container]:
        path = f"{self._pod_path}.spec.{kind}"
        return [
            Container(body, f"{path}[{body['name']}]", self.trace)
            for body in self.spec.get(kind) or ()
        ]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Host names of a PodSet, computed from its number of pods at the time of iteration."""

    pod_set: PodSet
    job_name: str
    subdomain: str

    def __iter__(self) -> Iterator[str]:
        return self.pod_set.hosts(self.job_name, self.subdomain)
