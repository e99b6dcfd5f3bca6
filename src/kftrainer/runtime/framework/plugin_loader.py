"""Loads the built-in plugins and the plugins that the configuration enables."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any, Literal

from kftrainer.api.configuration import DEFAULT, Admission
from kftrainer.runtime.errors import PluginFailedError
from kftrainer.runtime.framework.extension_points import (
    EXTENSION_POINTS,
    Plugin,
    PolicyExtension,
    RBACExtension,
    RBACRule,
    WatchExtension,
)
from kftrainer.runtime.framework.framework import Framework, FrameworkError, in_one_line
from kftrainer.runtime.plugins import PLUGINS

PACKAGE = "kftrainer"  # of the built-in plugins
GROUP = "kftrainer.plugins"  # group of entry points; the configuration refers to their names
BUILT_IN = tuple(plugin.name for plugin in PLUGINS)


@dataclass(frozen=True, slots=True)
class PluginSummary:
    """One plugin, as `kftrainer plugins` lists it."""

    name: str
    state: Literal["enabled", "disabled", "installed"]  # installed: in a package, but not enabled
    package: str
    version: str
    phases: Sequence[str] = ()  # names of the extension points; unknown if only installed
    policy: str = ""  # path in a runtime
    watches: Sequence[str] = ()  # kinds
    rbac_rules: Sequence[RBACRule] = ()


class PluginLoadError(Exception):
    """A plugin cannot be used; the message names it and the reason on one line."""


def load_framework(
    enabled: Sequence[str] = (),
    disabled: Collection[str] = (),
    *,
    admission: Admission = DEFAULT.admission,
) -> Framework:
    """Return the framework with the configured plugins; raises PluginLoadError.

    The built-in plugins that are not disabled come first, then the enabled ones in their order.
    """
    _require_built_in(disabled)
    ours = [plugin() for plugin in PLUGINS if plugin.name not in disabled]
    not_used = [plugin() for plugin in PLUGINS if plugin.name in disabled]
    used_names = {plugin.name for plugin in ours}
    try:
        others = (_load(each, used_names) for each in _entry_points_named(enabled))
        framework = Framework([*ours, *others], disabled=not_used, admission=admission)
        # The extension points that can be checked without a TrainJob or a runtime.
        framework.watches()
        framework.rbac_rules()
    except (FrameworkError, PluginFailedError) as error:
        raise PluginLoadError(str(error)) from error
    return framework


def plugin_summaries(
    enabled: Sequence[str] = (), disabled: Collection[str] = ()
) -> list[PluginSummary]:
    """Return all plugins in the order in which they run, then those that do not run.

    Raises PluginLoadError. The code of packages whose plugins are not enabled is not imported.
    """
    framework = load_framework(enabled, disabled)
    installed = {each.name: each for each in entry_points(group=GROUP)}
    origins = {name: _origin(each) for name, each in installed.items()}
    own = (PACKAGE, version(PACKAGE))
    return [
        *(
            _summary(each, "enabled", *(origins[each.name] if each.name in enabled else own))
            for each in framework.plugins
        ),
        *(_summary(each, "disabled", *own) for each in framework.disabled),
        *(
            PluginSummary(name, "installed", *origins[name])
            for name in sorted(origins.keys() - {*enabled})
        ),
    ]


def _origin(entry_point: EntryPoint) -> tuple[str, str]:
    """Return the name and version of the package that declares the entry point."""
    return (entry_point.dist.name, entry_point.dist.version) if entry_point.dist else ("", "")


def _summary(
    plugin: Plugin, state: Literal["enabled", "disabled"], package: str, package_version: str
) -> PluginSummary:
    watches = plugin.declare_watches() if isinstance(plugin, WatchExtension) else ()
    return PluginSummary(
        name=plugin.name,
        state=state,
        package=package,
        version=package_version,
        phases=[each.__name__ for each in EXTENSION_POINTS if isinstance(plugin, each)],
        policy=plugin.declare_policy().path if isinstance(plugin, PolicyExtension) else "",
        watches=[each.resource.group_kind for each in watches],
        rbac_rules=plugin.declare_rbac_rules() if isinstance(plugin, RBACExtension) else (),
    )


def _require_built_in(disabled: Collection[str]) -> None:
    unknown = set(disabled) - set(BUILT_IN)
    if unknown:
        raise PluginLoadError(
            f"plugins.disabled: {_listed(unknown)}: not built in: must be one of "
            f"{', '.join(BUILT_IN)}"
        )


def _entry_points_named(enabled: Sequence[str]) -> Iterator[EntryPoint]:
    """Yield the entry points with these names, in the given order."""
    if not enabled:
        return
    installed = entry_points(group=GROUP)
    for name in enabled:
        found = [each for each in installed if each.name == name]
        if not found:
            raise PluginLoadError(f"plugins.enabled: {name}: {_why_missing(name, installed.names)}")
        if len(found) > 1:
            packages = _listed(each.dist.name for each in found if each.dist)
            raise PluginLoadError(
                f"plugins.enabled: {name}: several packages declare it: {packages}"
            )
        yield found[0]


def _why_missing(name: str, installed: Iterable[str]) -> str:
    if name in BUILT_IN:
        return "it is built in, and enabled unless plugins.disabled lists it"
    available = _listed(installed) or "none"
    return (
        f"no installed package declares it as an entry point of {GROUP}; installed are: {available}"
    )


def _load(entry_point: EntryPoint, used_names: Collection[str]) -> Plugin:
    """Create the plugin; raise PluginLoadError if it cannot be used."""
    subject = f"plugin {entry_point.name} ({entry_point.value})"
    _require_none(subject, _value_problems(entry_point))
    loaded = _call(entry_point.load, f"{subject} cannot be imported")
    _require_none(subject, _class_problems(loaded))
    plugin: Plugin = _call(loaded, f"{subject} cannot be created")
    _require_none(subject, _name_problems(plugin, entry_point.name, used_names))
    _require_none(subject, _method_problems(plugin))
    return plugin


def _call(function: Callable[[], Any], failure: str) -> Any:
    """Call third-party code; translate every exception into PluginLoadError.

    This includes SystemExit: importing a script without a `__main__` guard could otherwise end the
    manager silently, even with exit code 0. KeyboardInterrupt is not caught.
    """
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise PluginLoadError(f"{failure}: {in_one_line(error)}") from error


def _require_none(subject: str, problems: Iterable[str]) -> None:
    found = _call(lambda: "; ".join(problems), f"{subject} cannot be inspected")
    if found:
        raise PluginLoadError(f"{subject} cannot be used: {found}")


def _value_problems(entry_point: EntryPoint) -> Iterator[str]:
    if entry_point.pattern.match(entry_point.value) is None:
        yield "its entry point must be of the form module:Class"


def _class_problems(loaded: object) -> Iterator[str]:
    if not inspect.isclass(loaded):
        yield f"it must be a class, as in module:Class, not a {type(loaded).__name__}"
        return
    for method in sorted(getattr(loaded, "__abstractmethods__", ())):
        yield f"it has no method {method}"


def _name_problems(plugin: object, wanted: str, used_names: Collection[str]) -> Iterator[str]:
    """Check that the plugin has the name of its entry point and that the name is unique.

    The name appears in the configuration, in errors and in `render --explain`.
    """
    name = getattr(plugin, "name", None)
    if not isinstance(name, str) or not name:
        yield f'it has no name: its class must set `name = "{wanted}"`'
    elif name != wanted:
        yield f"its name is {name}, but its entry point is named {wanted}"
    elif name in used_names:
        yield "a built-in plugin has this name: to replace that one, list it in plugins.disabled"


def _method_problems(plugin: object) -> Iterator[str]:
    """Check the signatures of the plugin's methods; `isinstance` compares only their names."""
    phases = [phase for phase in EXTENSION_POINTS if isinstance(plugin, phase)]
    if not phases:
        known = ", ".join(phase.__name__ for phase in EXTENSION_POINTS)
        yield f"it implements none of the extension points: {known}"
    for phase in phases:
        yield from _signature_problems(plugin, phase)


def _signature_problems(plugin: object, phase: type) -> Iterator[str]:
    for name in sorted(phase.__abstractmethods__):  # type: ignore[attr-defined]
        wanted = list(inspect.signature(getattr(phase, name)).parameters)[1:]
        method = getattr(plugin, name)
        if inspect.iscoroutinefunction(method):
            yield f"{name} is async: planning is synchronous"
        elif inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            yield f"{name} is a generator: it must return a value, as in {phase.__name__}"
        try:
            inspect.signature(method).bind(*wanted)
        except TypeError:
            yield f"{name} must take ({', '.join(wanted)}), as in {phase.__name__}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
