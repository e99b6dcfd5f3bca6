"""Jobs of the Training Operator, the predecessor of Kubeflow Trainer."""

from kftrainer.api import names

GROUP = "kubeflow.org"
KINDS = ("JAXJob", "MPIJob", "MXJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")
RUNTIMES = {"PyTorchJob": "torch-distributed", "MPIJob": "deepspeed-distributed"}


def is_v1_job(api_version: str, kind: str) -> bool:
    """Return whether it is a Training Operator job; v2beta1 MPIJobs are the MPI Operator's."""
    group, _, version = api_version.partition("/")
    return group == GROUP and version.startswith("v1") and kind in KINDS


def migration_hint(api_version: str, kind: str) -> str:
    """Return why such a job is rejected, and what to write instead."""
    runtime = RUNTIMES.get(kind)
    example = f"such as {runtime}" if runtime else "which you write for its framework"
    return (
        f"{kind} of {api_version} is a job of the Training Operator (v1), which is not supported: "
        f"write a {names.TRAIN_JOB} of {names.API_VERSION} that refers to a runtime, {example}"
    )
