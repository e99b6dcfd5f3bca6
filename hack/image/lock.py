"""The packages of a lock file, as pip installs them into the image."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# The platform of the image, not that of this machine.
ENVIRONMENT = {
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
}
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned package; each hash is that of one of its files."""

    name: str
    version: str
    hashes: tuple[str, ...]


def packages_in(lock: Path) -> Iterator[Package]:
    """Yield the packages that are installed on Linux with CPython, in the order of the file."""
    for entry in re.split(r"\n(?=\S)", lock.read_text().strip()):
        line, _, rest = entry.partition("\\\n")
        requirement = Requirement(line.strip())
        if requirement.marker is not None and not requirement.marker.evaluate(ENVIRONMENT):
            continue
        [pin] = requirement.specifier
        hashes = tuple(sorted(_HASH.findall(rest)))
        yield Package(canonicalize_name(requirement.name), pin.version, hashes)
