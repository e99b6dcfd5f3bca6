"""Golden cases: input documents and the complete objects of their plan.

`original` holds what Kubeflow Trainer 2.1 did, `v2.3` what release 2.3 did. They are never changed:
where we do better, the case has a file `.fixed.yaml` beside it that names the defect. `own` holds
cases of ours.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.planned_object import PlannedObject
from tests.support.objects import Object
from tests.support.plans import RUNTIMES

FOLDER = Path(__file__).parent.parent / "golden"
INPUT, EXPECTED, FIXED = ".input.yaml", ".expected.yaml", ".fixed.yaml"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Case:
    """A case by folder and name; files are read on access."""

    name: str

    @property
    def documents(self) -> list[Object]:
        """The TrainJob, its runtime, and what else is there, as the API server stores them."""
        return read(self.file(INPUT))

    @property
    def expected(self) -> list[Object]:
        """The objects to apply, in this order; what is drawn by chance is left out."""
        fixed = self.file(FIXED)
        return self._objects(fixed if fixed.exists() else self.file(EXPECTED))

    @property
    def original(self) -> list[Object]:
        """The same before it was fixed."""
        return self._objects(self.file(EXPECTED))

    def file(self, ending: str) -> Path:
        """One of the files of the case."""
        return FOLDER / f"{self.name}{ending}"

    def planned(self, namespace: str | None = None) -> list[PlannedObject]:
        """The planned objects, in another namespace if one is given."""
        documents = [_moved(each, namespace) for each in self.documents]
        [job] = [TrainJob.parse(each) for each in documents if each["kind"] == "TrainJob"]
        return list(RUNTIMES.of(job).new_objects(job, GivenObjects(documents)))

    def _objects(self, file: Path) -> list[Object]:
        return [_without_keys(each) for each in read(file)]


def read(file: Path) -> list[Object]:
    """The documents of a file, which may have none but a comment."""
    documents = yaml.load_all(file.read_text(), Loader=_Loader)
    return [each for each in documents if each is not None]


def _without_keys(manifest: Object) -> Object:
    if manifest["kind"] != "Secret":
        return manifest
    return {field: value for field, value in manifest.items() if field != "data"}


def _moved(document: Object, namespace: str | None) -> Object:
    moved: dict[str, Any] = copy.deepcopy(document)
    if namespace is not None and "namespace" in moved["metadata"]:
        moved["metadata"]["namespace"] = namespace
    return moved


CASES = [
    Case(f"{file.parent.name}/{file.name.removesuffix(INPUT)}")
    for file in sorted(FOLDER.glob(f"*/*{INPUT}"))
]
FIXED_CASES = [case for case in CASES if case.file(FIXED).exists()]
NAMES = [case.name for case in CASES]
