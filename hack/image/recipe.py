"""Inputs of the image, and the build command of each engine."""

import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NAME = "kftrainer"
ENGINES = ("docker", "podman", "buildah")  # in this order
# If there is neither SOURCE_DATE_EPOCH nor a commit; the Dockerfile has the same default.
DEFAULT_EPOCH = 1_577_836_800


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the image depends on, except the files."""

    tag: str
    epoch: int  # seconds; the latest modification time of files
    version: str
    revision: str
    base_image: str | None = None
    build_image: str | None = None
    pip_conf: Path | None = None
    ca: Path | None = None

    def build_arguments(self) -> Iterator[tuple[str, str]]:
        """The arguments of the Dockerfile."""
        if self.base_image:
            yield "BASE_IMAGE", self.base_image
        if self.build_image:
            yield "BUILD_IMAGE", self.build_image
        yield "SOURCE_DATE_EPOCH", str(self.epoch)
        yield "VERSION", self.version
        yield "REVISION", self.revision
        yield "CREATED", datetime.fromtimestamp(self.epoch, UTC).isoformat()


def command(engine: str, recipe: Recipe, more: Sequence[str] = ()) -> list[str]:
    """Return the command that builds the image.

    Docker reads the time from SOURCE_DATE_EPOCH. The other engines have a flag, and need
    `--format docker`, because OCI images have no HEALTHCHECK.
    """
    out = [engine, "build", "--tag", recipe.tag]
    if engine != "docker":
        out += ["--format", "docker", "--timestamp", str(recipe.epoch)]
    for name, value in recipe.build_arguments():
        out += ["--build-arg", f"{name}={value}"]
    for name, file in (("pip.conf", recipe.pip_conf), ("ca.crt", recipe.ca)):
        if file:
            out += ["--secret", f"id={name},src={file.absolute()}"]
    return [*out, *more, str(ROOT)]


def default_base_image() -> str:
    """Return the default base image of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text()
    [found] = re.findall(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    return str(found)


def is_pinned(image: str) -> bool:
    """Return whether the image has a digest; a tag can change."""
    return re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image) is not None


def version() -> str:
    """Return the version of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def revision() -> str:
    """Return the checked-out commit, with a mark if files are modified."""
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def epoch(environment: Mapping[str, str]) -> int:
    """Return the time for all files: from the environment, else that of the commit."""
    seconds = environment.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    return int(seconds or DEFAULT_EPOCH)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
