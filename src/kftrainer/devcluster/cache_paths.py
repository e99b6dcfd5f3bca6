"""Folders of the devcluster, all under the user's cache folder."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of kftrainer; it can be deleted and is created again."""
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that relative paths are ignored.
    base = Path(xdg) if os.path.isabs(xdg) else Path(environ.get("HOME") or Path.home()) / ".cache"
    return base / "kftrainer"


def binaries(cache: Path) -> Path:
    """Binaries that were built here, with their versions in the name."""
    return cache / "bin"


def manifests(cache: Path) -> Path:
    """CRDs and stages copied from Go modules, one folder per module and version."""
    return cache / "manifests"


def build_logs(cache: Path) -> Path:
    """Output of `go build`, one file per binary."""
    return cache / "build"


def runs(cache: Path) -> Path:
    """Control planes that end with a program, such as a test session."""
    return cache / "run"


def named(cache: Path) -> Path:
    """Control planes of `kftrainer dev`, one folder per name."""
    return cache / "dev"


def ports(cache: Path) -> Path:
    """Locks on the ports of running control planes."""
    return cache / "ports"
