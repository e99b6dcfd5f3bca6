"""The example of a third-party plugin, installed as a package of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
PYPROJECT, MODULE = "pyproject.toml", "acme_tracking.py"


def install(source: Path, target: Path) -> None:
    """Install the example into an empty folder with pip; `source` is another empty folder."""
    for name in (PYPROJECT, MODULE):
        shutil.copy(EXAMPLE / name, source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *offline, "--target", target, source], check=True)


def environment(packages: Path) -> dict[str, str]:
    """The environment of a process in which the packages are installed."""
    path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
