"""Runs commands on hosts that are network namespaces of one user namespace.

    unshare --user --map-root-user --net --mount --pid --fork --mount-proc python hosts.py < hosts

reads a JSON list of hosts from stdin. Every host has its address on `eth0`, its host name, its own
files in `/etc`, and private folders `/root` and `/tmp`. The command of the last host decides: the
others are killed when it ends, and its exit code is returned. It starts when all others listen on
the port of SSH.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BRIDGE, PREFIX = "br0", "/16"
SSH_PORT = 22
LISTENING_WITHIN = 60
NAMESPACES = ("--net", "--mount", "--uts")
ETC, PRIVATE, ASIDE = Path("/etc"), (Path("/root"), Path("/tmp")), Path("/run/aside")


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


def main() -> int:
    """Start all hosts and return the exit code of the last one."""
    hosts: list[dict[str, Any]] = json.load(sys.stdin)
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"10.9.255.254{PREFIX}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    *servers, (_, last) = [(host, start(host, index)) for index, host in enumerate(hosts)]
    for host, server in servers:
        go(server)
        wait_for_ssh(host["address"], server)
    go(last)
    return last.wait()


def start(host: Mapping[str, Any], index: int) -> subprocess.Popen[bytes]:
    """Start a host that waits for `go`; it is connected to the bridge."""
    command = ["unshare", *NAMESPACES, "--", sys.executable, __file__, json.dumps(host)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    outside = f"veth{index}"
    peer = ("type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    run("ip", "link", "add", outside, *peer)
    run("ip", "link", "set", outside, "master", BRIDGE, "up")
    return process


def go(process: subprocess.Popen[bytes]) -> None:
    """Let the host run its command."""
    assert process.stdin is not None
    process.stdin.close()


def wait_for_ssh(address: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the host accepts connections."""
    for _ in range(LISTENING_WITHIN * 10):
        try:
            socket.create_connection((address, SSH_PORT), timeout=1).close()
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"no SSH server on {address}")


def be_host(host: Mapping[str, Any]) -> None:
    """Run the command of a host, in its namespaces."""
    os.write(1, b"ready\n")
    sys.stdin.read()
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{host['address']}{PREFIX}", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    socket.sethostname(host["name"])
    files = {Path(path): content for path, content in host["files"].items()}
    keep_entries(ETC, files)
    hide(PRIVATE, [Path(each) for each in host["exposed"]])
    for path, (content, mode) in files.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
    os.dup2(2, 1)  # stdout was the connection to the parent
    os.chdir("/root")
    os.execvpe(host["command"][0], host["command"], host["env"])  # noqa: S606


def keep_entries(folder: Path, files: Mapping[Path, Any]) -> None:
    """Replace a folder by a private one with links to its entries, except those of the files."""
    aside = ASIDE / folder.name
    aside.mkdir(parents=True, exist_ok=True)
    run("mount", "--rbind", str(folder), str(aside))
    run("mount", "-t", "tmpfs", "tmpfs", str(folder))
    ours = {path.relative_to(folder).parts[0] for path in files if path.is_relative_to(folder)}
    for entry in aside.iterdir():
        if entry.name not in ours:
            (folder / entry.name).symlink_to(entry)


def hide(folders: Sequence[Path], exposed: Sequence[Path]) -> None:
    """Replace folders by empty ones, in which only the exposed folders are visible.

    They are mounted at the same path and not linked, because `mpirun` resolves links in its path.
    """
    hidden = [each for each in exposed if any(each.is_relative_to(folder) for folder in folders)]
    for index, each in enumerate(hidden):
        aside = ASIDE / f"exposed-{index}"
        aside.mkdir(parents=True, exist_ok=True)
        run("mount", "--rbind", str(each), str(aside))
    for folder in folders:
        run("mount", "-t", "tmpfs", "tmpfs", str(folder))
    for index, each in enumerate(hidden):
        each.mkdir(parents=True)
        run("mount", "--rbind", str(ASIDE / f"exposed-{index}"), str(each))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        be_host(json.loads(sys.argv[1]))
    sys.exit(main())
