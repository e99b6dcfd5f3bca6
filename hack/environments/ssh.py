"""The command `ssh`, as far as Open MPI and Hydra use it: run a command on another host.

It authenticates with the key files in `~/.ssh` and accepts every host key. Its exit code is that
of the command, or 255 if the connection fails.
"""

import argparse
import asyncio
import os
import pwd
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import asyncssh

CONNECTION_FAILED = 255
BLOCK = 1 << 16
KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")
# Options with an effect here, and options that are accepted because the client behaves so anyway.
OPTIONS = ("connectionattempts", "connecttimeout", "identityfile", "port", "user")
ACCEPTED = ("batchmode", "loglevel", "stricthostkeychecking", "userknownhostsfile")


class SSHError(Exception):
    """Why the command could not be run."""


def main() -> None:
    """Run the command of the arguments and exit with its code."""
    arguments = parser().parse_args()
    try:
        code = asyncio.run(run(arguments.host, " ".join(arguments.command), options_of(arguments)))
    except SSHError as error:
        print(f"ssh: {error}", file=sys.stderr)
        code = CONNECTION_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may still be reading stdin


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments that Open MPI and Hydra pass."""
    found = argparse.ArgumentParser(prog="ssh", add_help=False, allow_abbrev=False)
    for flag in "xXqnTaA":  # no X11, quiet, no terminal, no agent: this client has none of them
        found.add_argument(f"-{flag}", action="store_true")
    found.add_argument("-o", dest="options", action="append", default=[])
    for flag, option in (("p", "port"), ("l", "user"), ("i", "identityfile")):
        found.add_argument(f"-{flag}", dest=option)
    found.add_argument("host")
    found.add_argument("command", nargs=argparse.REMAINDER)
    return found


def options_of(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Return the options by name in lower case; a flag has precedence over `-o`."""
    found = {}
    for option in arguments.options:
        name, _, value = option.replace("=", " ", 1).strip().partition(" ")
        if name.lower() not in (*OPTIONS, *ACCEPTED):
            raise SSHError(f"Bad configuration option: {name}")
        found[name.lower()] = value.strip()
    flags = {name: getattr(arguments, name) for name in ("port", "user", "identityfile")}
    return {**found, **{name: value for name, value in flags.items() if value is not None}}


async def run(destination: str, command: str, options: Mapping[str, str]) -> int:
    """Run the command on the host and return its exit code."""
    user, _, host = destination.rpartition("@")
    account = pwd.getpwuid(os.getuid())
    folder = Path(account.pw_dir, ".ssh")
    keys = [options["identityfile"]] if "identityfile" in options else key_files(folder)
    async with await connect(host, user or options.get("user", account.pw_name), keys, options) as (
        connection
    ):
        process = await connection.create_process(command, encoding=None)
        loop = asyncio.get_running_loop()
        threading.Thread(target=send, args=(loop, process.stdin), daemon=True).start()
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(process.stdout, sys.stdout.fileno()))
            group.create_task(copy(process.stderr, sys.stderr.fileno()))
        ended = await process.wait()
    return CONNECTION_FAILED if ended.returncode is None else abs(ended.returncode)


def key_files(folder: Path) -> Sequence[str]:
    """Return the private keys that exist; OpenSSH rejects those that others can read."""
    found = [folder / name for name in KEYS if (folder / name).exists()]
    for key in found:
        if key.stat().st_uid == os.getuid() and key.stat().st_mode & 0o077:
            raise SSHError(f"Permissions for '{key}' are too open")
    return [str(each) for each in found]


async def connect(
    host: str, user: str, keys: Sequence[str], options: Mapping[str, str]
) -> asyncssh.SSHClientConnection:
    """Connect; as in OpenSSH, only a connection that is refused is attempted again."""
    port, attempts = int(options.get("port", 22)), int(options.get("connectionattempts", 1))
    timeout = int(options.get("connecttimeout", 60))
    for attempt in range(1, attempts + 1):
        try:
            return await asyncssh.connect(
                host,
                port,
                username=user,
                client_keys=keys,
                known_hosts=None,
                config=None,
                agent_path=None,
                connect_timeout=timeout,
            )
        except socket.gaierror as error:
            raise SSHError(f"Could not resolve hostname {host}: {error.strerror}") from error
        except OSError as error:
            if attempt == attempts:
                raise SSHError(f"connect to host {host} port {port}: {error.strerror}") from error
            await asyncio.sleep(1)
        except asyncssh.Error as error:
            raise SSHError(f"{user}@{host}: {error.reason}") from error
    raise SSHError("ConnectionAttempts must be at least 1")


def send(loop: asyncio.AbstractEventLoop, stdin: asyncssh.SSHWriter[bytes]) -> None:
    """Copy our stdin to the command; in a thread, since it can be any file."""
    try:
        while data := os.read(sys.stdin.fileno(), BLOCK):
            loop.call_soon_threadsafe(stdin.write, data)
        loop.call_soon_threadsafe(stdin.write_eof)
    except (OSError, RuntimeError):  # stdin is closed, or the command has ended
        return


async def copy(source: asyncssh.SSHReader[bytes], target: int) -> None:
    """Copy what the command writes."""
    while data := await source.read(BLOCK):
        while data:
            data = data[os.write(target, data) :]


if __name__ == "__main__":
    main()
