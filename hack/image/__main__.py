"""`make image`: builds the operator's image with whatever builds images here."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from image import recipe
from image.recipe import ENGINES, Recipe


def parser() -> argparse.ArgumentParser:
    """What can be said; the Dockerfile knows the rest."""
    parser = argparse.ArgumentParser(prog="image", description=__doc__)
    parser.add_argument("--tag", default=f"{recipe.NAME}:{recipe.version()}", metavar="IMAGE")
    parser.add_argument("--base-image", metavar="IMAGE", help="what it runs on")
    parser.add_argument("--build-image", metavar="IMAGE", help="what it is built on")
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


def main(argv: list[str]) -> int:
    """Build it; the exit code is the engine's."""
    said = parser().parse_args(argv)
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
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
