"""Runs during the build of the image: removes package installers and tests the command.

The base image may have no shell, so this is a Python script; it uses only the standard library of
3.11. It runs as root, before the user of the image is set.
"""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

HOME = Path("/opt/kftrainer")
USER = 65532
PACKAGES = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack", "ensurepip")
SCRIPTS = ("pip", "pip3*", "wheel", "easy_install*")
DEBIAN_WHEELS = Path("usr/share/python-wheels")  # from which venv of Debian installs pip


def leftovers(libraries: Iterable[Path], scripts: Path, root: Path = Path("/")) -> Iterator[Path]:
    """Yield all files of package installers."""
    for library in libraries:
        for package in PACKAGES:
            yield from library.glob(package)
            yield from library.glob(f"{package}-*.dist-info")
        yield from library.glob("distutils-precedence.pth")
    for pattern in SCRIPTS:
        yield from scripts.glob(pattern)
    yield from (root / DEBIAN_WHEELS).glob("*.whl")


def remove(paths: Iterable[Path]) -> None:
    """Remove files, links and folders."""
    for path in sorted(set(paths)):
        print(f"removing {path}")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def interpreters_libraries() -> set[Path]:
    """Yield the package folders of the base image's interpreter."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {Path(sysconfig.get_path(name, "posix_prefix", vars=base)) for name in names}
    debian = {Path(sys.base_prefix, "lib", "python3", "dist-packages")}
    return found | debian


def mismatch() -> str | None:
    """Return why the packages cannot run on this image's Python, or None."""
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    built = (HOME / "bin" / "python3").readlink()
    if Path(sys.prefix) != HOME:
        return f"it was built for {built}, and here Python is {sys.executable}"
    if not (HOME / "lib" / here).exists():
        found = ", ".join(path.name for path in (HOME / "lib").glob("python3*"))
        return f"it was built for {found}, and here {built} is {here}"
    return None


def main() -> int:
    """Clean up, then run the command as the user that will run it."""
    if reason := mismatch():
        print(f"BASE_IMAGE does not fit BUILD_IMAGE: {reason}.", file=sys.stderr)
        return 1
    remove(leftovers(interpreters_libraries(), Path(sys.base_prefix, "bin")))
    command = [str(HOME / "bin" / "kftrainer"), "--version"]
    return subprocess.run(command, user=USER, group=USER, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
