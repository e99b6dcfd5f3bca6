"""The version of pyproject.toml in the chart and in the documents."""

import re
from pathlib import Path

from image import recipe

CHART = Path("charts") / "kftrainer" / "Chart.yaml"
DOCUMENTS = (
    Path("README.md"),
    Path("docs") / "install.md",
    Path("docs") / "decisions" / "0007-image.md",
    Path("charts") / "kftrainer" / "README.md",
)
_IMAGE = re.compile(r"(?<=/kftrainer:)[0-9][\w.+-]*")
_CHART_VERSION = re.compile(r"(?m)^version: .*$")
_APP_VERSION = re.compile(r"(?m)^appVersion: .*$")
_DEVELOPMENT = re.compile(r"\.(dev\d+)$")


def semver(version: str) -> str:
    """The version as SemVer spells it: 0.1.0.dev0 is 0.1.0-dev0 for Helm."""
    return _DEVELOPMENT.sub(r"-\1", version)


def texts(root: Path) -> dict[Path, str]:
    """Every file that repeats the version, with the current one."""
    version = recipe.version()
    chart = _CHART_VERSION.sub(f"version: {semver(version)}", (root / CHART).read_text())
    documents = {root / path: _IMAGE.sub(version, (root / path).read_text()) for path in DOCUMENTS}
    return {root / CHART: _APP_VERSION.sub(f'appVersion: "{version}"', chart), **documents}
