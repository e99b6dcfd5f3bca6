"""Python implementations of the CEL rules of our CRDs, by the text of the rule.

If a rule is changed in the types, it has no implementation here, which a test detects.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from kftrainer.api import names
from kftrainer.kube.schema.cel import Rule

HOST_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 63
AMOUNTS_OF_PROCESSES = ("auto", "cpu", "gpu")


def _is_unchanged(self: Any, old: Any) -> bool:
    return bool(self == old)


def _name_is_host_label(self: Any, _: Any) -> bool:
    return HOST_LABEL.fullmatch(self["metadata"]["name"]) is not None


def _name_is_short(self: Any, _: Any) -> bool:
    return len(self["metadata"]["name"]) <= LONGEST_NAME


def _overrides_in_one_dialect(self: Any, _: Any) -> bool:
    return not (self.get("podTemplateOverrides") and self.get("podSpecOverrides"))


def _deadline_is_kept(self: Any, old: Any) -> bool:
    return ("activeDeadlineSeconds" in old) == ("activeDeadlineSeconds" in self)


def _excludes_trainer_container(self: Any, _: Any) -> bool:
    return names.CONTAINER_NODE not in self


def _manager_is_known(self: Any, _: Any) -> bool:
    return self in (names.MANAGED_BY_US, names.MANAGED_BY_MULTIKUEUE)


def _is_number_of_processes(self: Any, _: Any) -> bool:
    return self >= 1 if isinstance(self, int) else self in AMOUNTS_OF_PROCESSES


def _has_no_identity(self: Any, _: Any) -> bool:
    return not any(field in self for field in ("name", "namespace", "finalizers"))


def _has_one_framework(self: Any, _: Any) -> bool:
    return not ("torch" in self and "mpi" in self)


def _has_one_scheduler(self: Any, _: Any) -> bool:
    return not ("coscheduling" in self and "volcano" in self)


def _has_one_order(self: Any, _: Any) -> bool:
    if "startupPolicy" not in self or self["startupPolicy"]["startupPolicyOrder"] != "InOrder":
        return True
    return not any("dependsOn" in job for job in self["replicatedJobs"])


def _claims_have_no_namespace(self: Any, _: Any) -> bool:
    return not any(claim["metadata"].get("namespace") for claim in self["templates"])


def _is_rejected(_self: Any, _: Any) -> bool:
    return False


def _has_time(self: Any, _: Any) -> bool:
    return "lastUpdatedTime" in self


RULES: Final[Mapping[str, Rule]] = {
    "self == oldSelf": _is_unchanged,
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')": _name_is_host_label,
    "size(self.metadata.name) <= 63": _name_is_short,
    "!has(self.podTemplateOverrides) || size(self.podTemplateOverrides) == 0"
    " || !has(self.podSpecOverrides) || size(self.podSpecOverrides) == 0": (
        _overrides_in_one_dialect
    ),
    "has(oldSelf.activeDeadlineSeconds) == has(self.activeDeadlineSeconds)": _deadline_is_kept,
    "self.all(name, name != 'node')": _excludes_trainer_container,
    "self in ['trainer.kubeflow.org/trainjob-controller', 'kueue.x-k8s.io/multikueue']": (
        _manager_is_known
    ),
    "type(self) == int ? self >= 1 : self in ['auto', 'cpu', 'gpu']": _is_number_of_processes,
    "!has(self.name) && !has(self.namespace) && !has(self.finalizers)": _has_no_identity,
    "[has(self.torch), has(self.mpi)].filter(x, x).size() <= 1": _has_one_framework,
    "!(has(self.coscheduling) && has(self.volcano))": _has_one_scheduler,
    "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder'"
    " && self.replicatedJobs.exists(x, has(x.dependsOn)))": _has_one_order,
    "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)": (
        _claims_have_no_namespace
    ),
    # Fields of other releases.
    "false": _is_rejected,
    "has(self.lastUpdatedTime)": _has_time,
}
