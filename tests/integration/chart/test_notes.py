"""NOTES.txt, shown after an installation."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.integration.chart.value_sets import ALL_DISABLED, CELLS
from tests.support.helm import Values, notes

JOBSET = (
    "kubectl apply --server-side -f "
    "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
)
CRDS_KEPT: Values = {"crds": {"install": True}}
CRDS_NOT_KEPT: Values = {"crds": {"install": True, "keep": False}}


def test_notes_name_the_next_steps(helm_program: Path) -> None:
    output = notes(helm_program, CRDS_KEPT)
    assert JOBSET in output
    assert "rollout status deployment/kubeflow-trainer-controller-manager" in output
    assert "helm -n kubeflow-system test kubeflow-trainer" in output
    assert "The metrics are not scraped yet" in output
    assert "keeps the CustomResourceDefinitions" in output


def test_the_first_train_job_is_one(helm_program: Path) -> None:
    """The commands in the notes are valid in a shell; here they run with a dry run."""
    found = re.search(r"^kubectl create.*?^END$", notes(helm_program), re.DOTALL | re.MULTILINE)
    assert found
    text = f"set -e\nkubectl() {{ cat; }}\n{found[0]}\n"
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    job = yaml.safe_load(done.stdout)
    assert (job["kind"], job["spec"]["runtimeRef"]["name"]) == ("TrainJob", "plain")
    assert not done.stderr


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (ALL_DISABLED, "Metrics are disabled"),
        (ALL_DISABLED, "No runtimes are installed"),
        (ALL_DISABLED, "TrainJobs are admitted without validation"),
        (CRDS_NOT_KEPT, "DELETES ALL TrainJobs"),
        (CELLS["namespaces"], "in these namespaces only: team-a, team-b"),
        (CELLS["namespaces"], "kftrainer purge --release-runtimes --yes"),
        (CELLS["cert-manager-monitored"], "kubeflow-trainer-metrics-reader"),
    ],
    ids=["metrics", "runtimes", "webhook", "crds", "namespaces", "leftovers", "readers"],
)
def test_notes_warn_about_unusual_values(helm_program: Path, values: Values, message: str) -> None:
    assert message in notes(helm_program, values)
