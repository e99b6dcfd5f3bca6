"""Kubeflow Trainer's own chart and runtimes, fetched from its Go module."""

import shutil
from pathlib import Path

import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import manifests
from kftrainer.devcluster.artifacts.versions import Manifests
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.progress import SILENT

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


RUNTIMES = Manifests(
    "kubeflow-trainer-runtimes",
    CHART.module,
    CHART.version,
    CHART.checksum,
    tuple(
        f"manifests/base/runtimes/{file}.yaml"
        for file in (
            "deepspeed_distributed",
            "mlx_distributed",
            "torch_distributed",
            "torchtune/llama3_2/llama3_2_1B",
            "torchtune/llama3_2/llama3_2_3B",
            "torchtune/qwen2_5/qwen2_5_1.5B",
        )
    ),
)


async def upstream_runtimes() -> dict[str, Object]:
    """The runtimes as they were published, by name."""
    fetched = await manifests.provide(RUNTIMES, cache=cache_paths.cache_home(), progress=SILENT)
    documents = (yaml.safe_load((fetched / file).read_text()) for file in RUNTIMES.files)
    return {each["metadata"]["name"]: each for each in documents}


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
