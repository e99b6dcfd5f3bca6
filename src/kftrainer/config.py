"""Reads the manager's configuration file; unknown and duplicate keys are errors."""

from pathlib import Path

from kftrainer.api.configuration import Configuration
from kftrainer.kube import parsing
from kftrainer.kube.objects.model import InvalidDocumentError


class ConfigurationError(Exception):
    """The configuration file cannot be used; the message contains the location and the reason."""


def read(path: Path) -> Configuration:
    """Read the configuration from a file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"failed to read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"failed to read {path}: not UTF-8 text") from None
    return parse(text, source=str(path))


def parse(text: str, source: str) -> Configuration:
    """Parse a configuration; `source` names its origin in error messages."""
    try:
        documents = [each.value for each in parsing.parse(text)]
    except parsing.ParseError as error:
        place = source if error.line is None else f"{source}:{error.line}"
        raise ConfigurationError(f"failed to decode config file: {place}: {error}") from None
    match documents:
        case [dict() as document]:
            pass
        case [] | [_]:
            raise ConfigurationError(f"failed to decode config file: {source}: must be an object")
        case _:
            raise ConfigurationError(
                f"failed to decode config file: {source}: must contain one document"
            )
    try:
        return Configuration.parse(document)
    except InvalidDocumentError as error:
        problems = "; ".join(map(str, error.problems))
        raise ConfigurationError(f"invalid configuration: {source}: {problems}") from None
