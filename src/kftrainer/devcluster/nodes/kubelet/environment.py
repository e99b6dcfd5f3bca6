"""Environment variables of containers, as the Kubernetes kubelet computes them. Pure."""

import base64
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.devcluster.nodes.kubelet.inputs.downward_api import (
    allocatable_of,
    container_named,
    containers_of,
    metadata_field,
    resource_field,
)
from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError
from kftrainer.kube.objects.resource import Manifest

REFERENCE = re.compile(r"\$(?:\(([^)]*)\)|(.))", re.DOTALL)
FIELD_VERSION = "v1"
POD_LEVEL = ("cpu", "memory")  # limits that a pod can have as a whole
API_SERVICE = ("default", "kubernetes")  # every pod gets the variables of this Service


class ConfigError(Exception):
    """A container cannot be created (CreateContainerConfigError); a retry may succeed."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects that environments refer to.

    ConfigMaps and Secrets are those of the pod's namespace, by name; Services are those of all
    namespaces.
    """

    config_maps: Mapping[str, Manifest]
    secrets: Mapping[str, Manifest]
    services: Sequence[Manifest]


@dataclass(frozen=True, slots=True)
class References:
    """The names of the ConfigMaps and Secrets that a pod uses."""

    config_maps: frozenset[str]
    secrets: frozenset[str]


def references(pod: Manifest) -> References:
    """Return what the environments and the volumes of the pod refer to."""
    config_maps, secrets = set[str](), set[str]()
    for found in (*_environment_sources(pod), *_volume_sources(pod)):
        for field in ("configMapRef", "configMapKeyRef", "configMap"):
            if field in found:
                config_maps.add(found[field].get("name", ""))
        for field in ("secretRef", "secretKeyRef", "secret"):
            if field in found:
                secrets.add(found[field].get("secretName") or found[field].get("name", ""))
    return References(frozenset(config_maps - {""}), frozenset(secrets - {""}))


def _environment_sources(pod: Manifest) -> Iterator[Mapping[str, Any]]:
    for container in containers_of(pod):
        yield from container.get("envFrom") or ()
        yield from (each["valueFrom"] for each in container.get("env") or () if "valueFrom" in each)


def _volume_sources(pod: Manifest) -> Iterator[Mapping[str, Any]]:
    for volume in pod["spec"].get("volumes") or ():
        yield volume
        yield from (volume.get("projected") or {}).get("sources") or ()


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME) by the variable's value, and $$ by $; unknown names are kept unchanged."""

    def replaced(found: re.Match[str]) -> str:
        name, other = found.groups()
        if name is not None:
            return env.get(name, found[0])
        return "$" if other == "$" else found[0]

    return REFERENCE.sub(replaced, text)


def expand_all(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME) as `expand` does; ConfigError if a variable is missing or empty."""
    names = (found[1] for found in REFERENCE.finditer(text) if found[1] is not None)
    if missing := sorted({name for name in names if not env.get(name)}):
        raise ConfigError(f"missing value for {', '.join(missing)}")
    return expand(text, env)


def runtime_environment(hostname: str) -> dict[str, str]:
    """Return the variables that a container runtime adds unless the container has them.

    They are not available as $(NAME) in commands, as in a cluster.
    """
    return {"HOSTNAME": hostname, "HOME": "/root"}


def container_environment(
    pod: Manifest,
    container: Mapping[str, Any],
    sources: Sources,
    *,
    pod_ip: str,
    host_ip: str,
    node: Manifest,
) -> dict[str, str]:
    """Return the variables of a container without those of the image and the runtime.

    Raises ConfigError if a required ConfigMap, Secret or key does not exist.
    """
    resolver = _Resolver(pod, container, sources, {"podIP": pod_ip, "hostIP": host_ip}, node)
    services = _service_variables(pod, sources.services)
    try:
        env = dict[str, str]()
        for each in container.get("envFrom") or ():
            prefix = each.get("prefix") or ""
            env |= {f"{prefix}{key}": value for key, value in resolver.all_keys(each).items()}
        for each in container.get("env") or ():
            if each.get("value"):
                env[each["name"]] = expand(each["value"], ChainMap(env, services))
            elif (value := resolver.value(each)) is not None:
                env[each["name"]] = value
    except InputError as error:
        raise ConfigError(str(error)) from None
    return _checked({**services, **env})


def _checked(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if "\0" in value:
            raise ConfigError(f"environment variable {name} contains a NUL byte")
    return env


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Looks up what `valueFrom` and `envFrom` refer to."""

    pod: Manifest
    container: Mapping[str, Any]
    sources: Sources
    addresses: Mapping[str, str]
    node: Manifest

    def all_keys(self, source: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the variables of one item of `envFrom`."""
        if (reference := source.get("configMapRef")) is not None:
            return self._config_map(reference) or {}
        if (reference := source.get("secretRef")) is not None:
            data = self._secret(reference) or {}
            return {key: self._decoded(reference, key, value) for key, value in data.items()}
        return {}

    def value(self, variable: Mapping[str, Any]) -> str | None:
        """Return the value of a variable; None if an optional source does not exist."""
        source = variable.get("valueFrom") or {}
        match source:
            case {"fieldRef": reference}:
                return self._field(reference)
            case {"resourceFieldRef": reference}:
                return self._resource(reference)
            case {"configMapKeyRef": reference}:
                return self._key_of("ConfigMap", reference, self._config_map(reference))
            case {"secretKeyRef": reference}:
                found = self._key_of("Secret", reference, self._secret(reference))
                return None if found is None else self._decoded(reference, reference["key"], found)
            case {"fileKeyRef": _}:
                name = variable["name"]
                raise InputError(f"process nodes do not support fileKeyRef (variable {name})")
            case _:
                return ""

    def _field(self, reference: Mapping[str, Any]) -> str:
        version, path = reference.get("apiVersion") or FIELD_VERSION, reference["fieldPath"]
        if version != FIELD_VERSION:
            raise InputError(f"unsupported pod version: {version}")
        spec = self.pod["spec"]
        match path:
            case "spec.nodeName" | "spec.host":
                return str(spec.get("nodeName", ""))
            case "spec.serviceAccountName":
                return str(spec.get("serviceAccountName", ""))
            case "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs":
                return self.addresses[path.removeprefix("status.").removesuffix("s")]
            case _:
                return metadata_field(self.pod, path)

    def _resource(self, reference: Mapping[str, Any]) -> str:
        name = reference.get("containerName")
        container = container_named(self.pod, name) if name else self.container
        allocatable = dict(allocatable_of(self.node))
        limits = (self.pod["spec"].get("resources") or {}).get("limits") or {}
        allocatable |= {each: limits[each] for each in POD_LEVEL if each in limits}
        return resource_field(reference, container, allocatable)

    def _config_map(self, reference: Mapping[str, Any]) -> Mapping[str, str] | None:
        return _data(self.sources.config_maps, "configmap", reference)

    def _secret(self, reference: Mapping[str, Any]) -> Mapping[str, str] | None:
        return _data(self.sources.secrets, "secret", reference)

    def _key_of(
        self, kind: str, reference: Mapping[str, Any], data: Mapping[str, str] | None
    ) -> str | None:
        key = reference["key"]
        if data is not None and key in data:
            return data[key]
        if reference.get("optional"):
            return None
        where = f"{self.pod['metadata']['namespace']}/{reference['name']}"
        raise InputError(f"couldn't find key {key} in {kind} {where}")

    def _decoded(self, reference: Mapping[str, Any], key: str, value: str) -> str:
        try:
            return base64.b64decode(value).decode()
        except UnicodeDecodeError:
            where = f"{self.pod['metadata']['namespace']}/{reference['name']}"
            message = f"key {key} in Secret {where} is not valid UTF-8"
            raise InputError(f"{message}, so it cannot be an environment variable") from None


def _data(
    objects: Mapping[str, Manifest], kind: str, reference: Mapping[str, Any]
) -> Mapping[str, str] | None:
    """Return the data of the object; None if it does not exist and is optional."""
    name = reference.get("name", "")
    found = objects.get(name)
    if found is None and not reference.get("optional"):
        raise InputError(f'{kind} "{name}" not found')
    return None if found is None else found.get("data") or {}


def _service_variables(pod: Manifest, services: Sequence[Manifest]) -> dict[str, str]:
    """Return the variables of Services with a cluster IP.

    A Service of the namespace with the name of the API server's Service has priority over it.
    """
    own, links = pod["metadata"]["namespace"], pod["spec"].get("enableServiceLinks", True)
    chosen = dict[str, Mapping[str, Any]]()
    for service in services:
        metadata, spec = service["metadata"], service.get("spec") or {}
        if spec.get("clusterIP", "None") in ("", "None") or not spec.get("ports"):
            continue
        if metadata["namespace"] == own and links:
            chosen[metadata["name"]] = spec
        elif (metadata["namespace"], metadata["name"]) == API_SERVICE:
            chosen.setdefault(metadata["name"], spec)
    return {
        name: value
        for service, spec in chosen.items()
        for name, value in _link_variables(service, spec).items()
    }


def _link_variables(service: str, spec: Mapping[str, Any]) -> dict[str, str]:
    name, ip, ports = _variable_name(service), spec["clusterIP"], spec["ports"]
    shown = f"[{ip}]" if ":" in ip else ip
    env = {f"{name}_SERVICE_HOST": ip, f"{name}_SERVICE_PORT": str(ports[0]["port"])}
    for port in ports:
        if port.get("name"):
            env[f"{name}_SERVICE_PORT_{_variable_name(port['name'])}"] = str(port["port"])
    for index, port in enumerate(ports):
        number, protocol = port["port"], port.get("protocol") or "TCP"
        address = f"{protocol.lower()}://{shown}:{number}"
        if index == 0:
            env[f"{name}_PORT"] = address
        prefix = f"{name}_PORT_{number}_{protocol.upper()}"
        env |= {
            prefix: address,
            f"{prefix}_PROTO": protocol.lower(),
            f"{prefix}_PORT": str(number),
            f"{prefix}_ADDR": ip,
        }
    return env


def _variable_name(text: str) -> str:
    return text.replace("-", "_").upper()
