"""Writes the version of pyproject.toml into the chart and the documentation."""

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
    """Return the version in SemVer notation: 0.1.0.dev0 becomes 0.1.0-dev0."""
    return _DEVELOPMENT.sub(r"-\1", version)


def texts(root: Path) -> dict[Path, str]:
    """Return every file that contains the version, with the current version."""
    version = recipe.version()
    chart = _CHART_VERSION.sub(f"version: {semver(version)}", (root / CHART).read_text())
    documents = {root / path: _IMAGE.sub(version, (root / path).read_text()) for path in DOCUMENTS}
    return {root / CHART: _APP_VERSION.sub(f'appVersion: "{version}"', chart), **documents}
