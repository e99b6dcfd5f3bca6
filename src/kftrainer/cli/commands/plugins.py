"""`kftrainer plugins`: lists the plugins of an installation and the permissions they need."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kftrainer.cli.arguments import Commands, add_command, add_config

if TYPE_CHECKING:
    from kftrainer.runtime.framework.plugin_loader import PluginSummary

FAILED = 1
NONE = "-"
DESCRIPTION = """\
List the built-in plugins and the plugins of installed packages, in the order in which they run,
with their extension points and the permissions that the manager needs for them.

state:
  enabled    the plugin runs
  disabled   a built-in plugin that plugins.disabled of the configuration lists
  installed  a plugin of a package that plugins.enabled does not list; its code is not imported
"""


def add_parser(commands: Commands) -> None:
    """Add the `plugins` command."""
    parser = add_command(
        commands,
        "plugins",
        run,
        summary="list the plugins and the permissions they need",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="tables of plugins and permissions, or one JSON list (default: %(default)s)",
    )
    add_config(parser, used="plugins")


def run(arguments: argparse.Namespace) -> int:
    """Print the plugins; exit code 1 if one cannot be loaded."""
    from kftrainer import config as configuration
    from kftrainer.api.configuration import DEFAULT
    from kftrainer.runtime.framework.plugin_loader import PluginLoadError, plugin_summaries

    try:
        settings = configuration.read(arguments.config) if arguments.config else DEFAULT
        found = plugin_summaries(settings.plugins.enabled, settings.plugins.disabled)
    except (configuration.ConfigurationError, PluginLoadError) as error:
        print(f"kftrainer: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    sys.stdout.write(_as_json(found) if arguments.output == "json" else _as_text(found))
    return 0


def _as_json(plugins: "Sequence[PluginSummary]") -> str:
    import json

    return f"{json.dumps([_document(each) for each in plugins], indent=2)}\n"


def _document(plugin: "PluginSummary") -> dict[str, Any]:
    return {
        "name": plugin.name,
        "state": plugin.state,
        "package": plugin.package,
        "version": plugin.version,
        "phases": [*plugin.phases],
        "policy": plugin.policy or None,
        "watches": [*plugin.watches],
        "rbacRules": [rule.manifest() for rule in plugin.rbac_rules],
    }


def _as_text(plugins: "Sequence[PluginSummary]") -> str:
    heads = ("NAME", "STATE", "PACKAGE", "VERSION", "POLICY", "PHASES")
    rows = [
        (
            each.name,
            each.state,
            each.package or NONE,
            each.version or NONE,
            each.policy or NONE,
            ",".join(each.phases) or NONE,
        )
        for each in plugins
    ]
    rules = [("PLUGIN", "RESOURCE", "VERBS"), *_rules(plugins)]
    return "\n".join([*_table([heads, *rows]), "", *_table(rules), ""])


def _rules(plugins: "Sequence[PluginSummary]") -> Iterator[tuple[str, str, str]]:
    """Yield the permissions of plugins that run."""
    for plugin in plugins:
        for rule in plugin.rbac_rules if plugin.state == "enabled" else ():
            resource = f"{rule.resource.plural}.{rule.resource.group}".rstrip(".")
            yield plugin.name, resource, ",".join(rule.verbs)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "   ".join(cells).rstrip()
