"""`make image-check`: builds the image from nothing, looks into it, and runs it on a control plane.

It takes Debian or a child of it, root, buildah and debootstrap, Debian's packages and PyPI in
reach, and some minutes. Everything is in a folder of its own, which goes away in the end.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from image import bases, contents, recipe, trial
from image.bases import Buildah
from image.recipe import Recipe
from image.telling import CheckError, require, step, tell
from kftrainer.devcluster.errors import DevClusterError

TAGS = ("localhost/kftrainer-check:first", "localhost/kftrainer-check:second")
PROGRAMS = ("buildah", "debootstrap", "unshare", "setpriv")
MIRROR = "http://deb.debian.org/debian"
MEBIBYTE = 2**20


def missing() -> str | None:
    """Why this cannot be done here; None if it can."""
    if os.geteuid() != 0:
        return "building with debootstrap and chroot takes root"
    lacking = [program for program in PROGRAMS if not shutil.which(program)]
    return f"not installed: {', '.join(lacking)}" if lacking else None


def build(buildah: Buildah, tag: str, said: argparse.Namespace) -> None:
    """Build the image as `make image` does."""
    wanted = Recipe(
        tag=tag,
        epoch=recipe.epoch(os.environ),
        version=recipe.version(),
        revision=recipe.revision(),
        base_image=bases.BASE,
        build_image=bases.BUILD,
        pip_conf=said.pip_conf,
        ca=said.ca,
    )
    buildah.run(recipe.command("buildah", wanted, ("--quiet", "--no-cache")))


@contextmanager
def mounted(buildah: Buildah, image: str) -> Iterator[Path]:
    """The image's tree of files."""
    made = buildah("from", image)
    try:
        yield Path(buildah("mount", made))
    finally:
        buildah("rm", made)


def compare(buildah: Buildah) -> None:
    """Both images have the same layers, and the same files in them."""
    first, second = map(buildah.layers, TAGS)
    with mounted(buildah, TAGS[0]) as one, mounted(buildah, TAGS[1]) as two:
        ours, theirs = map(contents.fingerprints, (one / contents.PREFIX, two / contents.PREFIX))
    differing = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    require(not differing, f"differ between two builds: {', '.join(sorted(differing)[:10])}")
    require(first == second, f"the layers of two builds differ: {first} and {second}")
    tell(f"{len(ours)} files and folders are the same, with their times")
    tell(f"both have the layer {first[-1]}")


def look_into(buildah: Buildah, root: Path) -> None:
    """Nothing is there that should not be; tell the sizes."""
    found = list(contents.complaints(root, recipe.epoch(os.environ)))
    require(not found, "; ".join(found[:20]))
    home = root / contents.PREFIX
    [packages] = home.glob("lib/python3*/site-packages")
    for name, folder, pattern in (
        ("our files", home, "*"),
        ("of these, bytecode", home, "*.pyc"),
        ("of these, kubernetes_asyncio", packages / "kubernetes_asyncio", "*"),
        ("of these, kftrainer", packages / "kftrainer", "*"),
        ("of these, kftrainer.devcluster", packages / "kftrainer" / "devcluster", "*"),
    ):
        tell(f"{name}: {contents.size(folder, pattern) / MEBIBYTE:.1f} MiB")
    for image in buildah("images", "--format", "{{.Name}}:{{.Tag}}: {{.Size}}").splitlines():
        tell(image)


def check(said: argparse.Namespace, folder: Path) -> None:
    """Do all of it."""
    buildah = Buildah(folder)
    with step(f"making base images of Debian {said.release}"):
        bases.make_bases(buildah, folder, said.release, said.mirror)
    for tag in TAGS:
        with step(f"building {tag}"):
            build(buildah, tag, said)
    with step("comparing the two"):
        compare(buildah)
    config = buildah.image(TAGS[0])["Docker"]["config"]
    with mounted(buildah, TAGS[0]) as root:
        with step("looking into it"):
            for key in ("User", "Entrypoint", "Cmd", "Labels"):
                tell(f"{key}: {config[key]}")
            look_into(buildah, root)
        with step("running it"):
            asyncio.run(trial.run(root, config, folder))


def main(argv: list[str] | None = None) -> int:
    """Check, and say what is wrong."""
    parser = argparse.ArgumentParser(prog="image.check", description=__doc__)
    parser.add_argument("--release", default=bases.RELEASE, help="of Debian: %(default)s")
    parser.add_argument("--mirror", default=MIRROR, help="of Debian: %(default)s")
    parser.add_argument("--pip-conf", type=Path, metavar="FILE")
    parser.add_argument("--ca", type=Path, metavar="FILE")
    said = parser.parse_args(argv)
    if reason := missing():
        print(f"image-check: {reason}.", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="kftrainer-image-"))
    folder.chmod(0o755)
    try:
        check(said, folder)
    except (CheckError, DevClusterError, subprocess.CalledProcessError) as error:
        print(f"image-check: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
