"""The tables of fields in docs/compatibility.md, and the fields of a CRD to compare them with."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.objects import Object

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
TRAIN_JOB = "TrainJob"
RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
KINDS = {"TrainJob": (TRAIN_JOB,), "runtime": RUNTIMES}
HEADER = ["field", "releases", "accepted", "behaviour", "difference"]
INTRODUCTION = re.compile(r"[Ff]ields of (`[^|]*`) of a (TrainJob|runtime)[:.]")
CODE = re.compile(r"`([^`]+)`")
RELEASES = ("2.0", "2.1", "2.2", "2.3")
UNPUBLISHED = "2.4"  # its CRDs are not available
NONE = "none"
# Fields with a type of Kubernetes, whose fields the tables do not list.
KUBERNETES_TYPES = re.compile(
    r"(^|\.)(env|resourcesPerNode|secretRef|volumeMounts|affinity|tolerations|volumes"
    r"|schedulingGates|imagePullSecrets|securityContext|resources|resourceClaims|conditions"
    r"|selector|podFailurePolicy|templates|nodeSelector|elasticPolicy\.metrics)$"
    r"|^spec\.template\.spec\.replicatedJobs\[\]\.template\.spec\.(template|successPolicy)$"
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, for each of its fields."""

    kinds: tuple[str, ...]
    paths: tuple[str, ...]  # the field in each object that the table is about
    releases: str
    accepted: str

    @property
    def is_served(self) -> bool:
        """Whether objects with the field are accepted."""
        return self.accepted == "yes"

    def published_in(self) -> tuple[str, ...]:
        """The releases with published CRDs that have the field, as the table lists them."""
        if self.releases in (NONE, UNPUBLISHED):
            return ()
        if self.releases == "all":
            return RELEASES
        if self.releases.endswith("+"):
            return RELEASES[RELEASES.index(self.releases[:-1]) :]
        return tuple(self.releases.split(", "))


def rows() -> Iterator[Row]:
    """Yield the rows of all tables of fields, one for each field."""
    kinds: tuple[str, ...] = ()
    prefixes: list[str] = []
    for line in DOCUMENT.read_text().splitlines():
        if introduction := INTRODUCTION.search(line):
            kinds = KINDS[introduction[2]]
            prefixes = CODE.findall(introduction[1])
        elif line.startswith("#"):
            kinds = ()
        elif kinds and line.startswith("| `"):
            fields, releases, accepted, _, _ = (each.strip() for each in line[1:-1].split("|"))
            for field in CODE.findall(fields):
                paths = tuple(f"{prefix}.{field}" for prefix in prefixes)
                yield Row(kinds, paths, releases, accepted)


def fields(crd: Object) -> dict[str, Object]:
    """Return the schemas of the fields of `spec` and `status`, by path."""
    [version] = crd["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    return {
        path: schema
        for top in ("spec", "status")
        if top in properties
        for path, schema in _below(top, properties[top])
    }


def _below(path: str, schema: Any) -> Iterator[tuple[str, Object]]:
    """Yield the fields below this one."""
    if KUBERNETES_TYPES.search(path):
        return
    items = schema.get("items", {})
    for inner, part in ((path, schema), (f"{path}[]", items)):
        for name, found in part.get("properties", {}).items():
            yield f"{inner}.{name}", found
            yield from _below(f"{inner}.{name}", found)


def rejects(crd: Object, path: str) -> bool:
    """Whether the CRD has a rule that rejects every value of the field, by its name."""
    declared = fields(crd)
    parent, _, name = path.rpartition(".")
    above = declared.get(parent, {})
    if any(f"!has(self.{name})" in rule["rule"] for rule in _rules(above)):
        return True
    while path:
        if any(rule.get("reason") == "FieldValueForbidden" for rule in _rules(declared[path])):
            return True
        path = path.rpartition(".")[0]
        if path not in declared:
            return False
    return False


def _rules(schema: Object) -> list[Object]:
    found: list[Object] = schema.get("x-kubernetes-validations", [])
    return found
