"""Images: each name selects a virtual environment of this machine. Nothing is pulled."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kftrainer.devcluster.nodes.sandbox.protocol import Image

SYSTEM_PATH = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
MARKER = "pyvenv.cfg"


class ImageError(Exception):
    """No environment is selected by an image name."""

    def __init__(self, message: str, reason: str = "ErrImageNeverPull") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SelectedImage:
    """The environment that an image name selects."""

    image: Image
    folder: Path

    @property
    def id(self) -> str:
        """The image ID in the status of a container."""
        return f"kftrainer-process://{self.folder}"


class Images:
    """Selects environments by image name: the exact name first, then the longest pattern.

    A pattern ends with `*`. Names without a match select the Python that runs this program, unless
    `only_mapped` is set.
    """

    def __init__(self, folders: Mapping[str, Path], *, only_mapped: bool = False) -> None:
        self._folders = folders
        self._only_mapped = only_mapped

    def select(self, name: str) -> SelectedImage:
        """Return the environment for this image name."""
        folder = self._folder(name)
        if folder is None:
            if self._only_mapped:
                raise ImageError(
                    f'Container image "{name}" is not present: images are not pulled on process '
                    "nodes, and none of the options --image maps this name to a folder"
                )
            return SelectedImage(default_image(), Path(sys.prefix))
        if not folder.is_dir():
            raise ImageError(f'Container image "{name}" selects {folder}, which is not a folder')
        return SelectedImage(image_in(folder), folder)

    def _folder(self, name: str) -> Path | None:
        if name in self._folders:
            return self._folders[name]
        patterns = [each for each in self._folders if each.endswith("*")]
        matching = [each for each in patterns if fnmatchcase(name, each)]
        return self._folders[max(matching, key=len)] if matching else None


def default_image() -> Image:
    """Return the environment of the Python that runs this program, with what it can import."""
    imported = [Path(each) for each in sys.path if each]
    return _image(Path(sys.prefix), [Path(sys.base_prefix), *imported])


def image_in(folder: Path) -> Image:
    """Return the environment in a folder: a virtual environment, or any folder with `bin`."""
    return _image(folder, [*_base_python(folder), *_linked_packages(folder)])


def _image(folder: Path, needed: Iterable[Path]) -> Image:
    return Image(
        path=(str(folder / "bin"), *SYSTEM_PATH),
        expose=tuple(str(each) for each in outermost([folder, *needed])),
        env={"VIRTUAL_ENV": str(folder)} if (folder / MARKER).is_file() else {},
    )


def outermost(folders: Iterable[Path]) -> list[Path]:
    """Return the existing folders that are in none of the others, without duplicates."""
    kept: list[Path] = []
    for folder in sorted({each for each in folders if each.is_dir()}):
        if not any(folder.is_relative_to(each) for each in kept):
            kept.append(folder)
    return kept


def _base_python(folder: Path) -> list[Path]:
    """Return the installation that a virtual environment was created from."""
    try:
        lines = (folder / MARKER).read_text().splitlines()
    except OSError:
        return []
    found = {
        key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)
    }
    return [Path(found["home"]).resolve().parent] if "home" in found else []


def _linked_packages(folder: Path) -> list[Path]:
    """Return the folders of packages that are installed as links, with `pip install -e`."""
    links = folder.glob("lib/python*/site-packages/*.pth")
    lines = [line.strip() for link in links for line in link.read_text().splitlines()]
    return [Path(line) for line in lines if line.startswith("/")]
