"""The command `sshd -De`: an SSH server in the foreground for the user that runs it.

Like OpenSSH, it reads `~/.ssh/authorized_keys` for each connection, and runs commands in the home
folder with an environment of its own instead of that of the container. `-oSetEnv=NAME=VALUE` adds
a variable to it.
"""

import argparse
import asyncio
import os
import pwd
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import asyncssh

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
SHELL = "/bin/sh"
ACCOUNT = pwd.getpwuid(os.getuid())


class Server(asyncssh.SSHServer):
    """Authenticates one connection by the authorized keys."""

    def __init__(self) -> None:
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Log the connection."""
        self._connection = conn
        print(f"Connection from {conn.get_extra_info('peername')[0]}", file=sys.stderr, flush=True)

    def begin_auth(self, username: str) -> bool:
        """Load the keys; authentication is always required."""
        keys = Path(ACCOUNT.pw_dir, ".ssh", "authorized_keys")
        if self._connection is not None and username == ACCOUNT.pw_name and keys.exists():
            self._connection.set_authorized_keys(str(keys))
        return True


def environment(settings: Sequence[str]) -> dict[str, str]:
    """Return the environment of commands, with the variables of `SetEnv`."""
    found = {
        "HOME": ACCOUNT.pw_dir,
        "LOGNAME": ACCOUNT.pw_name,
        "PATH": SYSTEM_PATH,
        "SHELL": SHELL,
        "USER": ACCOUNT.pw_name,
    }
    for setting in settings:
        name, _, value = setting.partition("=")
        found[name] = value
    return found


async def run(env: Mapping[str, str], process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run one command; it is terminated when its connection closes."""
    command = [SHELL] if process.command is None else [SHELL, "-c", process.command]
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ACCOUNT.pw_dir,
        env=env,
        start_new_session=True,
    )
    try:
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        code = await child.wait()
        await process.stdout.drain()
        await process.stderr.drain()
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGHUP)


async def serve(port: int, env: Mapping[str, str]) -> None:
    """Accept connections until SIGTERM."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await asyncssh.listen(
        "",
        port,
        server_factory=Server,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        process_factory=partial(run, env),
        encoding=None,
        allow_pty=False,
        config=None,
    )
    print(f"Server listening on port {port}.", file=sys.stderr, flush=True)
    async with server:
        await stopped.wait()


def main() -> None:
    """Serve as the arguments specify."""
    parser = argparse.ArgumentParser(prog="sshd", add_help=False)
    for flag in "De":  # in the foreground, and log to stderr: both always
        parser.add_argument(f"-{flag}", action="store_true")
    parser.add_argument("-p", dest="port", type=int, default=22)
    parser.add_argument("-o", dest="options", action="append", default=[])
    arguments = parser.parse_args()
    options = [option.partition("=") for option in arguments.options]
    if unknown := [name for name, _, _ in options if name != "SetEnv"]:
        parser.error(f"Bad configuration option: {unknown[0]}")
    settings = [setting for _, _, setting in options]
    asyncio.run(serve(arguments.port, environment(settings)))


if __name__ == "__main__":
    main()
