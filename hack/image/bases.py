"""Creates base images from Debian packages, for machines without access to a registry."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RELEASE = "trixie"
BASE, BUILD = "localhost/kftrainer-check-base:1", "localhost/kftrainer-check-build:1"
# The operator needs Python; the build also needs venv.
RUNS, BUILDS = "python3", "python3-venv"
APT = (
    *("apt-get", "-qq", "-o", "Dpkg::Use-Pty=0"),
    *("-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root"),
)


class Buildah:
    """Runs buildah with its images in a separate folder."""

    def __init__(self, folder: Path) -> None:
        settings = folder / "storage.conf"
        settings.write_text(
            f'[storage]\ndriver = "overlay"\n'
            f'graphroot = "{folder / "images"}"\nrunroot = "{folder / "run"}"\n'
        )
        self.environment = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(settings),
            "BUILDAH_ISOLATION": "chroot",
        }

    def __call__(self, *arguments: str | Path) -> str:
        """Run it and return its output; raises CalledProcessError."""
        return self.run(["buildah", *map(str, arguments)])

    def run(self, command: Sequence[str]) -> str:
        """Run a command that calls buildah, such as that of `make image`."""
        done = subprocess.run(
            command, env=self.environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.strip()

    def image(self, name: str) -> dict[str, Any]:
        """Return the metadata of the image."""
        metadata: dict[str, Any] = json.loads(self("inspect", "--type", "image", name))
        return metadata

    def layers(self, name: str) -> list[str]:
        """Return the digests of the image's layers."""
        return list(self.image(name)["OCIv1"]["rootfs"]["diff_ids"])


def make_bases(buildah: Buildah, folder: Path, release: str, mirror: str) -> None:
    """Create an image with Python, and one with the tools to install packages."""
    root = folder / "debian"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={RUNS}", release, root, mirror],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, root, "/")
    buildah("config", "--user", "1000:1000", container)  # as hardened base images do
    buildah("commit", "--quiet", container, BASE)
    as_root = ("run", "--user", "0:0", "--env", "DEBIAN_FRONTEND=noninteractive", container)
    buildah(*as_root, *APT, "update")
    buildah(*as_root, *APT, "install", "--yes", BUILDS)
    buildah("commit", "--quiet", container, BUILD)
    buildah("rm", container)
