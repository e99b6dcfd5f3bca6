"""`make image-check`: builds the image from scratch, inspects it, and runs it on a control plane.

Requires Debian or a derivative, root, buildah, debootstrap, and access to Debian's packages and
PyPI. It takes some minutes. All files are in a temporary folder, which is deleted in the end.
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

from image import bases, contents, recipe, run_manager
from image.bases import Buildah
from image.recipe import Recipe
from image.reporting import CheckError, report, require, step
from kftrainer.devcluster.errors import DevClusterError

TAGS = ("localhost/kftrainer-check:first", "localhost/kftrainer-check:second")
PROGRAMS = ("buildah", "debootstrap", "unshare", "setpriv")
MIRROR = "http://deb.debian.org/debian"
MEBIBYTE = 2**20


def missing() -> str | None:
    """Return why the check cannot run on this machine, or None."""
    if os.geteuid() != 0:
        return "debootstrap and chroot require root"
    lacking = [program for program in PROGRAMS if not shutil.which(program)]
    return f"not installed: {', '.join(lacking)}" if lacking else None


def build(buildah: Buildah, tag: str, arguments: argparse.Namespace) -> None:
    """Build the image as `make image` does."""
    wanted = Recipe(
        tag=tag,
        epoch=recipe.epoch(os.environ),
        version=recipe.version(),
        revision=recipe.revision(),
        base_image=bases.BASE,
        build_image=bases.BUILD,
        pip_conf=arguments.pip_conf,
        ca=arguments.ca,
    )
    buildah.run(recipe.command("buildah", wanted, ("--quiet", "--no-cache")))


@contextmanager
def mounted(buildah: Buildah, image: str) -> Iterator[Path]:
    """Mount the image's file system."""
    container = buildah("from", image)
    try:
        yield Path(buildah("mount", container))
    finally:
        buildah("rm", container)


def compare(buildah: Buildah) -> None:
    """Check that both images have the same layers and files."""
    first, second = map(buildah.layers, TAGS)
    with mounted(buildah, TAGS[0]) as one, mounted(buildah, TAGS[1]) as two:
        ours, theirs = map(contents.fingerprints, (one / contents.PREFIX, two / contents.PREFIX))
    differing = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    require(not differing, f"differ between two builds: {', '.join(sorted(differing)[:10])}")
    require(first == second, f"the layers of two builds differ: {first} and {second}")
    report(f"{len(ours)} files and folders are identical, including their times")
    report(f"both have the layer {first[-1]}")


def inspect_root(buildah: Buildah, root: Path) -> None:
    """Check that the image contains no unwanted files; print the sizes."""
    found = list(contents.problems(root, recipe.epoch(os.environ)))
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
        report(f"{name}: {contents.size(folder, pattern) / MEBIBYTE:.1f} MiB")
    for image in buildah("images", "--format", "{{.Name}}:{{.Tag}}: {{.Size}}").splitlines():
        report(image)


def check(arguments: argparse.Namespace, folder: Path) -> None:
    """Run all checks."""
    buildah = Buildah(folder)
    with step(f"creating base images of Debian {arguments.release}"):
        bases.make_bases(buildah, folder, arguments.release, arguments.mirror)
    for tag in TAGS:
        with step(f"building {tag}"):
            build(buildah, tag, arguments)
    with step("comparing the two images"):
        compare(buildah)
    config = buildah.image(TAGS[0])["Docker"]["config"]
    with mounted(buildah, TAGS[0]) as root:
        with step("inspecting the image"):
            for key in ("User", "Entrypoint", "Cmd", "Labels"):
                report(f"{key}: {config[key]}")
            inspect_root(buildah, root)
        with step("running the image"):
            asyncio.run(run_manager.run(root, config, folder))


def main(argv: list[str] | None = None) -> int:
    """Run all checks; errors are one line on standard error."""
    parser = argparse.ArgumentParser(prog="image.check", description=__doc__)
    parser.add_argument(
        "--release", default=bases.RELEASE, help="release of Debian (default: %(default)s)"
    )
    parser.add_argument("--mirror", default=MIRROR, help="mirror of Debian (default: %(default)s)")
    parser.add_argument("--pip-conf", type=Path, metavar="FILE")
    parser.add_argument("--ca", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    if reason := missing():
        print(f"image-check: {reason}.", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="kftrainer-image-"))
    folder.chmod(0o755)
    try:
        check(arguments, folder)
    except (CheckError, DevClusterError, subprocess.CalledProcessError) as error:
        print(f"image-check: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
