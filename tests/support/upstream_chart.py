"""Kubeflow Trainer's own chart, fetched from its Go module, and its runtimes."""

import shutil
from pathlib import Path

import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import manifests
from kftrainer.devcluster.artifacts.versions import Manifests
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.progress import SILENT
from tests.support.upstream_manifests import training_manifests

FOLDER = "charts/kubeflow-trainer"
CHART = Manifests(
    "kubeflow-trainer-chart",
    "github.com/kubeflow/trainer/v2",
    "v2.1.0",
    "h1:jRABD9ZYToamNH2atHze3L/VC/v6KCAqUEqsOQOjVTg=",
    tuple(
        f"{FOLDER}/{file}"
        for file in (
            "Chart.yaml",
            "values.yaml",
            "crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
            "crds/trainer.kubeflow.org_trainingruntimes.yaml",
            "crds/trainer.kubeflow.org_trainjobs.yaml",
            "templates/_helpers.tpl",
            "templates/manager/_helpers.tpl",
            "templates/manager/configmap.yaml",
            "templates/manager/deployment.yaml",
            "templates/manager/service.yaml",
            "templates/rbac/_helpers.tpl",
            "templates/rbac/clusterrole.yaml",
            "templates/rbac/clusterrole_binding.yaml",
            "templates/rbac/service_account.yaml",
            "templates/webhook/_helpers.tpl",
            "templates/webhook/secret.yaml",
            "templates/webhook/validating_webhook_configuration.yaml",
        )
    ),
)


async def upstream_runtimes() -> dict[str, Object]:
    """The runtimes of the same release that need nothing else in the cluster, by name."""
    found = await training_manifests(CHART.version)
    return {
        each["metadata"]["name"]: each
        for path, documents in found.items()
        if "data-cache" not in path
        for each in documents
    }


async def upstream_chart(folder: Path) -> Path:
    """The chart as it was published, but for JobSet, which is in the cluster already."""
    fetched = await manifests.provide(CHART, cache=cache_paths.cache_home(), progress=SILENT)
    chart = folder / "kubeflow-trainer"
    shutil.copytree(fetched / FOLDER, chart)
    file = chart / "Chart.yaml"
    parsed = yaml.safe_load(file.read_text())
    del parsed["dependencies"]
    parsed["appVersion"] = CHART.version  # what its release adds
    file.write_text(yaml.safe_dump(parsed))
    return chart
