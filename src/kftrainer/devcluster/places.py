"""Where the devcluster keeps things: everything lies under the user's cache folder."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The cache folder of kftrainer: all of it can be deleted and will be made again."""
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path must be ignored.
    base = Path(xdg) if os.path.isabs(xdg) else Path(environ.get("HOME") or Path.home()) / ".cache"
    return base / "kftrainer"


def binaries(cache: Path) -> Path:
    """Binaries that were built here, named with their versions."""
    return cache / "bin"


def manifests(cache: Path) -> Path:
    """CRDs and stages copied out of Go modules, one folder per module and version."""
    return cache / "manifests"


def build_logs(cache: Path) -> Path:
    """What `go build` said, one file per binary."""
    return cache / "build"


def runs(cache: Path) -> Path:
    """Control planes that live as long as a program, such as a test session."""
    return cache / "run"


def named(cache: Path) -> Path:
    """Control planes of `kftrainer dev`, one folder per name."""
    return cache / "dev"


def ports(cache: Path) -> Path:
    """Locks on the ports that running control planes have chosen."""
    return cache / "ports"
