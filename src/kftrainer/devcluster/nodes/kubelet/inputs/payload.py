"""The files of configMap, secret and downwardAPI volumes. Pure."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from posixpath import normpath
from typing import Any

from kftrainer.devcluster.nodes.kubelet.inputs.atomic_files import File
from kftrainer.devcluster.nodes.kubelet.inputs.downward_api import (
    container_named,
    metadata_field,
    resource_field,
)
from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError
from kftrainer.kube.objects.resource import Manifest

DEFAULT_MODE = 0o644
LONGEST_PATH, LONGEST_NAME = 4096, 255  # bytes
MISSING_KEY = {
    "configmap": "configmap references non-existent config key: {}",
    "secret": "references non-existent secret key: {}",
}

Files = dict[str, File]


def clean_path(path: str) -> str:
    """Return the normalized path of a file in a volume; InputError if it leaves the volume."""
    if not path:
        raise InputError('invalid path: must not be empty: ""')
    if path.startswith("/"):
        raise InputError(f"invalid path: must be relative path: {path}")
    if len(path.encode()) > LONGEST_PATH:
        raise InputError(f"invalid path: must be less than or equal to {LONGEST_PATH} characters")
    names = path.split("/")
    if ".." in names:
        raise InputError(f"invalid path: must not contain '..': {path}")
    if any(len(name.encode()) > LONGEST_NAME for name in names):
        raise InputError(
            f"invalid path: filenames must be less than or equal to {LONGEST_NAME} characters"
        )
    cleaned = normpath(path)
    if cleaned.startswith(".."):
        raise InputError(f"invalid path: must not start with '..': {path}")
    if cleaned == "." or "\0" in cleaned:
        raise InputError(f"invalid path: must be the path of a file: {path!r}")
    return cleaned


def files_of_keys(
    kind: str, found: Manifest | None, source: Mapping[str, Any], default_mode: int
) -> Files:
    """Return the files of a ConfigMap or Secret, which is None if it does not exist.

    `source` is the volume or the source of a projected volume.
    """
    optional = bool(source.get("optional"))
    if found is None:
        name = source.get("secretName") or source.get("name", "")
        if not optional:
            raise InputError(f'{kind} "{name}" not found')
        found = {}
    data = dict(_contents(kind, found))
    items: Sequence[Mapping[str, Any]] = source.get("items") or ()
    if not items:
        return {clean_path(key): File(content, default_mode) for key, content in data.items()}
    files = Files()
    for item in items:
        if item["key"] in data:
            mode = item.get("mode")
            path = clean_path(item["path"])
            files[path] = File(data[item["key"]], default_mode if mode is None else mode)
        elif not optional:
            raise InputError(MISSING_KEY[kind].format(item["key"]))
    return files


def _contents(kind: str, found: Manifest) -> Iterator[tuple[str, bytes]]:
    data, binary = found.get("data") or {}, found.get("binaryData") or {}
    if kind == "secret":
        data, binary = {}, data
    yield from ((key, text.encode()) for key, text in data.items())
    yield from ((key, base64.b64decode(encoded)) for key, encoded in binary.items())


def files_of_pod(
    pod: Manifest,
    items: Sequence[Mapping[str, Any]],
    default_mode: int,
    allocatable: Mapping[str, str],
) -> Files:
    """Return the files of a downwardAPI volume or source."""
    files = Files()
    for item in items:
        text = ""
        if (field := item.get("fieldRef")) is not None:
            text = metadata_field(pod, field["fieldPath"])
        elif (reference := item.get("resourceFieldRef")) is not None:
            container = container_named(pod, reference.get("containerName", ""))
            text = resource_field(reference, container, allocatable)
        mode = item.get("mode")
        path = clean_path(item["path"])
        files[path] = File(text.encode(), default_mode if mode is None else mode)
    return files
