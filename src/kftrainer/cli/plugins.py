"""Loads the plugins that the manager would run, for commands that run without it."""

from pathlib import Path

from kftrainer import config as configuration
from kftrainer.api.configuration import DEFAULT
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.framework.plugin_loader import load_framework


def framework_of(config: Path | None) -> Framework:
    """Load the configured plugins; raise ConfigurationError or PluginLoadError."""
    settings = DEFAULT if config is None else configuration.read(config)
    plugins = settings.plugins
    return load_framework(plugins.enabled, plugins.disabled, admission=settings.admission)
