"""Generates docs/configuration.md from the types and flags of the manager's configuration."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import yaml
from annotated_types import Ge, MaxLen, MinLen
from pydantic.fields import FieldInfo

from kftrainer.api import names
from kftrainer.api.configuration import CONTROLLERS, Allowed, Configuration, Settings
from kftrainer.cli.commands import manager
from kftrainer.runtime.plugins import PLUGINS

INTRODUCTION = """\
<!-- Generated from src/kftrainer/api/configuration.py and the manager's flags by `make generate`; \
edit those. -->

# The manager's configuration

`kftrainer manager --config FILE` reads one YAML or JSON document, the Configuration of Kubeflow \
Trainer. Flags override the file; the file overrides the defaults. Files of Kubeflow Trainer 2.1 \
work unchanged. The chart creates the file from its values.

The file is read once, at startup. With an unknown key, a duplicate key or an invalid value the \
manager exits with a message that names the key. Only `apiVersion` and `kind` are required. A \
section or key without a value is ignored.
"""
EXAMPLE = """\
## All settings with their defaults

```yaml
{example}```
"""
FLAGS_ONLY = """\
## Settings that are only flags

| flag | description |
|---|---|
"""
TYPES: Mapping[object, str] = {bool: "boolean", int: "integer", float: "number", list: "list"}
# Empty is a value of its own.
EMPTY = '`""`'


class _Dumper(yaml.SafeDumper):
    """YAML dumper that quotes strings only where necessary, with double quotes."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if ":" in text or not text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


def document() -> str:
    """Return the whole document."""
    parser = _parser()
    parts = [INTRODUCTION, EXAMPLE.format(example=example())]
    parts += [_section(alias, section, parser) for alias, section in sections()]
    parts.append(FLAGS_ONLY + "".join(_flags_only(parser)))
    return "\n".join(parts)


def sections() -> Iterator[tuple[str, type[Settings]]]:
    """Yield the sections of the file, by their keys."""
    for name, field in Configuration.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield field.alias or name, field.annotation


def example() -> str:
    """Return a configuration file with all settings, each with its default."""
    out: dict[str, Any] = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIGURATION}
    for alias, section in sections():
        out[alias] = {key: _default(key, field) for key, field in _keys(section)}
    return yaml.dump(out, Dumper=_Dumper, sort_keys=False)


def _keys(section: type[Settings]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield field.alias or name, field


def _default(key: str, field: FieldInfo) -> Any:
    if key == "groupKindConcurrency":
        return dict(CONTROLLERS)
    default = field.get_default(call_default_factory=True)
    return str(default) if isinstance(default, str) else default


def _section(alias: str, section: type[Settings], parser: argparse.ArgumentParser) -> str:
    words = (section.__doc__ or "").strip()
    rows = [
        f"| `{key}` | {_type(field)} | {_shown(key, field)} | {_allowed(alias, key, field)} "
        f"| {field.description} | {_flag((alias, key), parser)} |\n"
        for key, field in _keys(section)
    ]
    head = "| key | type | default | allowed | description | flag |\n|---|---|---|---|---|---|\n"
    return f"## `{alias}`\n\n{words}\n\n{head}{''.join(rows)}"


def _type(field: FieldInfo) -> str:
    kind = get_origin(field.annotation) or field.annotation
    if kind is Mapping or (isinstance(kind, type) and issubclass(kind, Mapping)):
        return "map"
    return TYPES.get(kind, "string")


def _shown(key: str, field: FieldInfo) -> str:
    default = _default(key, field)
    if isinstance(default, dict):
        return ", ".join(f"`{kind}: {number}`" for kind, number in default.items())
    text = yaml.safe_dump(default, default_flow_style=True).removesuffix("...\n").strip()
    return EMPTY if default == "" else f"`{text}`"


def _allowed(section: str, key: str, field: FieldInfo) -> str:
    if (section, key) == ("plugins", "disabled"):
        return ", ".join(f"`{plugin.name}`" for plugin in PLUGINS)
    if field.annotation is bool:
        return "`true`, `false`"
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{each}`" if each else EMPTY for each in get_args(field.annotation))
    words = [each.words for each in field.metadata if isinstance(each, Allowed)]
    return "; ".join(words or _bounds(field))


def _bounds(field: FieldInfo) -> Iterator[str]:
    least = max((each.min_length for each in field.metadata if isinstance(each, MinLen)), default=0)
    for each in field.metadata:
        if isinstance(each, Ge):
            yield f"`{each.ge}` or more"
        if isinstance(each, MaxLen):
            yield f"{least} to {each.max_length} characters"


def _parser() -> argparse.ArgumentParser:
    commands = argparse.ArgumentParser().add_subparsers()
    manager.add_parser(commands)
    parser: argparse.ArgumentParser = commands.choices["manager"]
    return parser


def _flag(path: tuple[str, str], parser: argparse.ArgumentParser) -> str:
    of_path = {where: flag for flag, where in manager.FLAGS.items()}
    found = [each for each in _actions(parser) if each.dest == of_path.get(path)]
    return _written(found[0]) if found else ""


def _flags_only(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in _actions(parser):
        if action.dest not in manager.FLAGS and action.dest != "help":
            text = (action.help or "") % vars(action)
            words = [text]
            if action.choices:
                words.append(f"[{', '.join(map(str, action.choices))}]")
            if action.default not in (None, []) and "(default:" not in text:
                words.append(f"(default: {action.default})")
            yield f"| {_written(action)} | {' '.join(filter(None, words))} |\n"


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  argparse has no public API for it


def _written(action: argparse.Action) -> str:
    metavar = action.metavar or ("N" if action.type in (int, float) else None)
    value = f" {metavar}" if metavar else ""
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)
