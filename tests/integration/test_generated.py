"""Generated files are as the generator would write them; it takes JobSet's module, fetched once."""

import subprocess
import sys
from pathlib import Path

from kftrainer.devcluster.controlplane import ControlPlane

ROOT = Path(__file__).parent.parent.parent


def test_generated_files_are_up_to_date(control_plane: ControlPlane) -> None:
    assert control_plane  # where the binaries can be had, so can the module
    done = subprocess.run(
        [sys.executable, "-m", "generate", "--check"],
        cwd=ROOT / "hack",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run `make generate`:\n{done.stdout}{done.stderr}"
