"""The check for namespaces on a kernel that forbids them."""

import subprocess
import sys

FORBIDDEN = """
from pathlib import Path
from kftrainer.devcluster.nodes.sandbox.availability import unavailable
from kftrainer.devcluster.nodes.sandbox.namespaces import new_user_namespace

print(unavailable())
new_user_namespace(0, 0, 0)  # has a limit of its own
Path("/proc/sys/user/max_user_namespaces").write_text("0")
print(unavailable())
"""


def test_a_limit_of_zero_namespaces_is_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORBIDDEN], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "None",
        "The kernel forbids user namespaces: run `sudo sysctl user.max_user_namespaces=10000`.",
    ]
