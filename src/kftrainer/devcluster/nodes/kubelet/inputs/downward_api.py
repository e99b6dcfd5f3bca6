"""The downward API: fields of a pod and resources of its containers as text. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError
from kftrainer.kube.objects.quantity import MILLI, Quantity
from kftrainer.kube.objects.resource import Manifest

MAPS = ("metadata.annotations", "metadata.labels")
HUGE_PAGES = "hugepages-"
# A container without a limit of these gets that of the node.
DEFAULTED = ("cpu", "memory", "ephemeral-storage")
ONE = Quantity.parse("1")
ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}


def containers_of(pod: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the containers of a pod and then its init containers."""
    yield from pod["spec"]["containers"]
    yield from pod["spec"].get("initContainers") or ()


def metadata_field(pod: Manifest, path: str) -> str:
    """Return a field of the pod's metadata, as files and environment variables contain it."""
    name, found, rest = path.partition("['")
    if found and rest.endswith("']") and name:
        if name not in MAPS:
            raise InputError(f'fieldPath "{path}" does not support subscript')
        return str(_map(pod, name).get(rest.removesuffix("']"), ""))
    if path in MAPS:
        return "\n".join(
            f"{key}={_quoted(value)}" for key, value in sorted(_map(pod, path).items())
        )
    if path in ("metadata.name", "metadata.namespace", "metadata.uid"):
        return str(pod["metadata"].get(path.removeprefix("metadata."), ""))
    raise InputError(f"unsupported fieldPath: {path}")


def allocatable_of(node: Manifest) -> Mapping[str, str]:
    """Return the resources of a node that pods can use."""
    status = node.get("status") or {}
    found: Mapping[str, str] = status.get("allocatable") or status.get("capacity") or {}
    return found


def container_named(pod: Manifest, name: str) -> Mapping[str, Any]:
    """Return the container or init container with this name."""
    for each in containers_of(pod):
        if each["name"] == name:
            return each
    raise InputError(f"container {name} not found")


def resource_field(
    reference: Mapping[str, Any], container: Mapping[str, Any], allocatable: Mapping[str, str]
) -> str:
    """Return a resource of the container in units of the divisor, rounded up.

    Limits that are not set are those of the node.
    """
    field = reference["resource"]
    kind, _, name = field.partition(".")
    is_known = kind in ("limits", "requests") and (name in DEFAULTED or name.startswith(HUGE_PAGES))
    if not is_known:
        raise InputError(f"unsupported container resource : {field}")
    amounts = (container.get("resources") or {}).get(kind) or {}
    amount = Quantity.parse(amounts.get(name, "0"))
    if kind == "limits" and name in DEFAULTED and not amount:
        amount = Quantity.parse(allocatable.get(name, "0"))
    divisor = Quantity.parse(reference.get("divisor") or "0") or ONE
    if name == "cpu":
        return str(-(-_millis(amount) // _millis(divisor)))
    return str(-(-amount.ceil() // divisor.ceil()))


def _millis(amount: Quantity) -> int:
    return amount.in_millis().nanos // MILLI


def _map(pod: Manifest, path: str) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get(path.removeprefix("metadata.")) or {}
    return found


def _quoted(text: str) -> str:
    """Return the text in double quotes, as Go's strconv.Quote does."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in ESCAPES:
        return ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:  # noqa: PLR2004  ASCII
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
