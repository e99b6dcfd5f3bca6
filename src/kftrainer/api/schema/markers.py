"""Markers on the API types for the CRD generator, for what Python types cannot express.

They are used in `Annotated[…]`, and as class variables for rules about a whole object.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError


@dataclass(frozen=True, slots=True)
class Cel:
    """A CEL rule that the API server evaluates, and the message for a violation."""

    rule: str
    message: str
    field_path: str | None = None  # path of the error, if it is not that of the rule
    reason: str | None = None  # the type of the field error, if not FieldValueInvalid


@dataclass(frozen=True, slots=True)
class ListMap:
    """A list whose items are identified by these fields."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Atomic:
    """A list or map that is replaced as a whole by server-side apply."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A part of the schema of JobSet's CRD, by its path below `spec`."""

    path: str


@dataclass(frozen=True, slots=True)
class SchemaOf:
    """A value with the schema of this type that is not parsed as this type."""

    model: type[Any]


@dataclass(frozen=True, slots=True)
class AnyFields:
    """Objects whose fields the schema does not declare: for the items of atomic lists."""


@dataclass(frozen=True, slots=True)
class NotServed:
    """A field of another release, declared so that the API server rejects it by name.

    Without a declaration the API server drops the field silently. A value that a stored object
    already has stays valid as long as it does not change: the API server ratchets the rule.
    """

    name: str  # user-visible name of the feature
    release: str  # release of Kubeflow Trainer
    instead: str
    was_inert: bool = False  # the release that has it accepts it without effect
    # Whether the whole effect of the field is in the JobSet, so that a JobSet that another
    # implementation created from it can be resumed.
    is_in_job_set: bool = False

    @property
    def message(self) -> str:
        """The reason for the rejection."""
        return f"{self.name} (Kubeflow Trainer {self.release}) is not supported: {self.instead}"


@dataclass(frozen=True, slots=True)
class IntOrString:
    """An integer or a string, like Kubernetes' IntOrString."""


def list_map(*keys: str) -> ListMap:
    """Mark a list whose items are identified by these fields."""
    return ListMap(keys)


# Values of numProcPerNode that stand for the number of devices of a node.
PROCESS_WORDS = ("auto", "cpu", "gpu")
PROCESSES_RULE = f"type(self) == int ? self >= 1 : self in {list(PROCESS_WORDS)}"
PROCESSES_MESSAGE = "NumProcPerNode must be equal to auto, cpu, gpu, or int value"


def _processes(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PydanticCustomError("processes", "must be auto, cpu, gpu or an integer")
    if isinstance(value, str) and value not in PROCESS_WORDS:
        raise PydanticCustomError("processes", "must be auto, cpu, gpu or an integer")
    if isinstance(value, int) and value < 1:
        raise PydanticCustomError("processes", "must be at least 1")
    return value


ProcessesPerNode = Annotated[
    int | str,
    BeforeValidator(_processes),
    IntOrString(),
    Cel(PROCESSES_RULE, PROCESSES_MESSAGE),
]
Int32 = Annotated[int, Field(le=2**31 - 1, json_schema_extra={"format": "int32"})]
