"""`make image`: builds the operator's image with Docker, Podman or Buildah."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from image import recipe, sbom
from image.recipe import ENGINES, Recipe

NOT_PINNED = (
    "image: {image} has no digest, so the result cannot be traced to its base. Look up the "
    "digest (`docker buildx imagetools inspect {image}`), check it, and pass "
    "BASE_IMAGE={image}@sha256:... (and BUILD_IMAGE=... if you use one), or ALLOW_TAG=1 to use "
    "the current image of the tag."
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(prog="image", description=__doc__)
    parser.add_argument("--tag", default=f"{recipe.NAME}:{recipe.version()}", metavar="IMAGE")
    parser.add_argument(
        "--base-image",
        metavar="IMAGE",
        help="base image of the result (default: that of the Dockerfile)",
    )
    parser.add_argument(
        "--build-image", metavar="IMAGE", help="image in which the packages are installed"
    )
    parser.add_argument(
        "--allow-tag", action="store_true", help="accept base images without a digest"
    )
    parser.add_argument(
        "--sbom",
        type=Path,
        default=recipe.ROOT / "dist" / f"{recipe.NAME}-{recipe.version()}.cdx.json",
        metavar="FILE",
        help="file for the SBOM (default: %(default)s)",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="program that builds the image (default: the first that works)",
    )
    parser.add_argument(
        "--pip-conf", type=Path, metavar="FILE", help="configuration of pip during the build"
    )
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="CA certificates for pip, mounted at /run/secrets/ca.crt",
    )
    parser.add_argument("more", nargs="*", help="further arguments of the engine, after --")
    return parser


def works(engine: str) -> bool:
    """Return whether the engine is installed and, for Docker, its daemon is running."""
    if not shutil.which(engine):
        return False
    return subprocess.run([engine, "info"], capture_output=True, check=False).returncode == 0


def main(argv: list[str] | None = None) -> int:
    """Build the image; return the exit code of the engine."""
    arguments = parser().parse_args(argv)
    base_image = arguments.base_image or recipe.default_base_image()
    for image in filter(None, (base_image, arguments.build_image)):
        if not arguments.allow_tag and not recipe.is_pinned(image):
            print(NOT_PINNED.format(image=image), file=sys.stderr)
            return 2
    engine = arguments.engine or next(filter(works, ENGINES), None)
    if engine is None:
        print(f"image: none of {', '.join(ENGINES)} is installed and running.", file=sys.stderr)
        return 1
    wanted = Recipe(
        tag=arguments.tag,
        epoch=recipe.epoch(os.environ),
        version=recipe.version(),
        revision=recipe.revision(),
        base_image=arguments.base_image,
        build_image=arguments.build_image,
        pip_conf=arguments.pip_conf,
        ca=arguments.ca,
    )
    command = recipe.command(engine, wanted, arguments.more)
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        sbom.write(arguments.sbom, sbom.bill_of_materials(wanted, base_image))
        print(f"image: bill of materials: {arguments.sbom}")
    return code


if __name__ == "__main__":
    sys.exit(main())
