"""`make image`: builds the operator's image with whatever builds images here."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from image import recipe, sbom
from image.recipe import ENGINES, Recipe

NOT_PINNED = (
    "image: {image} is not named by digest, so the result cannot be traced to its base. Look the "
    "digest up (`docker buildx imagetools inspect {image}`), check it, and pass "
    "BASE_IMAGE={image}@sha256:... (and BUILD_IMAGE=... if you use one), or ALLOW_TAG=1 to build "
    "on whatever the tag is today."
)


def parser() -> argparse.ArgumentParser:
    """What can be said; the Dockerfile knows the rest."""
    parser = argparse.ArgumentParser(prog="image", description=__doc__)
    parser.add_argument("--tag", default=f"{recipe.NAME}:{recipe.version()}", metavar="IMAGE")
    parser.add_argument("--base-image", metavar="IMAGE", help="what it runs on")
    parser.add_argument("--build-image", metavar="IMAGE", help="what it is built on")
    parser.add_argument(
        "--allow-tag", action="store_true", help="accept base images that are not named by digest"
    )
    parser.add_argument(
        "--sbom",
        type=Path,
        default=recipe.ROOT / "dist" / f"{recipe.NAME}-{recipe.version()}.cdx.json",
        metavar="FILE",
        help="where to write the image's bill of materials: %(default)s",
    )
    parser.add_argument("--engine", choices=ENGINES, help="(default: the first that works)")
    parser.add_argument(
        "--pip-conf", type=Path, metavar="FILE", help="pip's configuration while it is built"
    )
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="certificates for pip, as /run/secrets/ca.crt",
    )
    parser.add_argument("more", nargs="*", help="what else to tell the engine, after --")
    return parser


def works(engine: str) -> bool:
    """Whether the engine is there; Docker takes a daemon, too."""
    if not shutil.which(engine):
        return False
    return subprocess.run([engine, "info"], capture_output=True, check=False).returncode == 0


def main(argv: list[str] | None = None) -> int:
    """Build it; the exit code is the engine's."""
    said = parser().parse_args(argv)
    base_image = said.base_image or recipe.default_base_image()
    for image in filter(None, (base_image, said.build_image)):
        if not said.allow_tag and not recipe.is_pinned(image):
            print(NOT_PINNED.format(image=image), file=sys.stderr)
            return 2
    engine = said.engine or next(filter(works, ENGINES), None)
    if engine is None:
        print(f"image: none of {', '.join(ENGINES)} works here.", file=sys.stderr)
        return 1
    wanted = Recipe(
        tag=said.tag,
        epoch=recipe.epoch(os.environ),
        version=recipe.version(),
        revision=recipe.revision(),
        base_image=said.base_image,
        build_image=said.build_image,
        pip_conf=said.pip_conf,
        ca=said.ca,
    )
    command = recipe.command(engine, wanted, said.more)
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        sbom.write(said.sbom, sbom.bill_of_materials(wanted, base_image))
        print(f"image: bill of materials: {said.sbom}")
    return code


if __name__ == "__main__":
    sys.exit(main())
