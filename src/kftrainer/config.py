"""Reads the manager's configuration file; unknown and duplicate keys are errors."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from kftrainer.api.configuration import Configuration
from kftrainer.kube.objects.model import InvalidDocumentError
from kftrainer.kube.yaml_limits import check_expansion


class ConfigurationError(Exception):
    """The configuration file cannot be used; the message contains the location and the reason."""


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys."""

    def construct_document(self, node: yaml.Node) -> Any:
        check_expansion(node)
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  the base class's signature
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is not a word", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is said twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read(path: Path) -> Configuration:
    """Read the configuration from a file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"failed to read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"failed to read {path}: it is not UTF-8 text") from None
    return parse(text, source=str(path))


def parse(text: str, source: str) -> Configuration:
    """Parse a configuration; `source` names its origin in error messages."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506  a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigurationError(f"failed to decode config file: {source}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"failed to decode config file: {source}: it must be an object")
    try:
        return Configuration.parse(document)
    except InvalidDocumentError as error:
        problems = "; ".join(map(str, error.problems))
        raise ConfigurationError(f"invalid configuration: {source}: {problems}") from None
