"""What people install holds what the commands need: from the sources to a wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_wheel_built_from_the_source_distribution_contains_the_data(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t", "sdist"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [source] = tmp_path.glob("*.tar.gz")
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "-w", tmp_path, source], check=True, capture_output=True)
    [built] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(built).namelist())
    assert {
        "kftrainer/api/crds/trainjobs.trainer.kubeflow.org.yaml",
        "kftrainer/kube/objects/pod_template_merge_keys.json",
        "kftrainer/devcluster/artifacts/gomodules/kubernetes/go.sum",
        "kftrainer/devcluster/artifacts/go-toolchain.lock",
        "kftrainer/py.typed",
    } <= names
