"""Identifies the object in a document: its kind, name and namespace."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kftrainer.api import names, resources
from kftrainer.api.resources import AnyResource
from kftrainer.api.schema.offline import KINDS
from kftrainer.kube.objects.model import Problem
from kftrainer.kube.objects.resource import Resource

DEFAULT_NAMESPACE = "default"
NO_UID = "00000000-0000-0000-0000-000000000000"  # of a TrainJob that has not been created
# Jobs of the Training Operator, the predecessor of Kubeflow Trainer.
V1_GROUP = "kubeflow.org"
V1_KINDS = ("JAXJob", "MPIJob", "MXJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")
V1_RUNTIMES = {"PyTorchJob": "torch-distributed", "MPIJob": "deepspeed-distributed"}
KNOWN = tuple(each for each in vars(resources).values() if isinstance(each, Resource))


def head_problems(api_version: object, kind: object) -> Iterator[Problem]:
    """Yield why the kind of an object is invalid or unknown."""
    for field_name, value in (("apiVersion", api_version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            yield Problem(field_name, "must be a string" if value else "is required")
            return
    if str(api_version).partition("/")[0] == names.GROUP and not (
        api_version == names.API_VERSION and kind in KINDS
    ):
        known = f"the only kinds are {', '.join(KINDS)} of {names.API_VERSION}"
        yield Problem("", f"{kind} of {api_version}: {known}")
    elif _is_v1_job(str(api_version), str(kind)):
        yield Problem("", _migration_hint(str(api_version), str(kind)))


def _is_v1_job(api_version: str, kind: str) -> bool:
    """Return whether it is a Training Operator job; v2beta1 MPIJobs are the MPI Operator's."""
    group, _, version = api_version.partition("/")
    return group == V1_GROUP and version.startswith("v1") and kind in V1_KINDS


def _migration_hint(api_version: str, kind: str) -> str:
    """Return why such a job is rejected, and what to write instead."""
    runtime = V1_RUNTIMES.get(kind)
    example = f"such as {runtime}" if runtime else "which you write for its framework"
    return (
        f"{kind} of {api_version} is a job of the Training Operator (v1), which is not supported: "
        f"write a {names.TRAIN_JOB} of {names.API_VERSION} that refers to a runtime, {example}"
    )


def is_list_of(known: Collection[tuple[str, str]], api_version: Any, kind: Any) -> bool:
    """Return whether it should be a list of a known kind; valid lists were expanded before."""
    return kind.endswith("List") and (api_version, kind.removesuffix("List")) in known


def metadata_problems(metadata: object) -> Iterator[Problem]:
    """Yield why the name or namespace of an object is invalid."""
    if not isinstance(metadata, Mapping):
        yield Problem("metadata", "is required" if metadata is None else "must be an object")
        return
    if metadata.get("namespace") is not None and not isinstance(metadata["namespace"], str):
        yield Problem("metadata.namespace", "must be a string")
    name = metadata.get("name")
    if name is not None and not isinstance(name, str):
        yield Problem("metadata.name", "must be a string")
    elif not name and metadata.get("generateName"):
        yield Problem("metadata.name", "is required: only the API server can generate one")
    elif not name:
        yield Problem("metadata.name", "is required")


def located(metadata: Mapping[str, Any], resource: AnyResource) -> dict[str, Any]:
    """Return the metadata with the namespace and uid that the API server would set."""
    located = {key: value for key, value in metadata.items() if key != "namespace"}
    if resource.namespaced:
        located["namespace"] = metadata.get("namespace") or DEFAULT_NAMESPACE
    if resource is resources.TRAIN_JOBS and not metadata.get("uid"):
        located["uid"] = NO_UID
    return located
