"""What the API types say to the generator of CRDs beyond their Python types.

The types say it in `Annotated[…]`, and as class variables for rules about a whole object.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule that the API server evaluates, and what it says when the rule does not hold."""

    rule: str
    message: str
    field_path: str | None = None  # where the trouble is, if not where the rule stands
    reason: str | None = None  # the type of the field error, if not FieldValueInvalid


@dataclass(frozen=True, slots=True)
class ListMap:
    """A list whose items are told apart by these fields."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Atomic:
    """A list or map that is replaced as a whole by server-side apply."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A part of somebody else's schema, found by its path in JobSet's CRD below `spec`."""

    path: str


@dataclass(frozen=True, slots=True)
class SchemaOf:
    """Has the schema of this type, although it is not parsed as such."""

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

    name: str  # of the feature, as users know it
    release: str  # of Kubeflow Trainer
    instead: str
    was_inert: bool = False  # accepted without effect by the release that has it

    @property
    def message(self) -> str:
        """The reason for the rejection."""
        return f"{self.name} (Kubeflow Trainer {self.release}) is not supported: {self.instead}"


@dataclass(frozen=True, slots=True)
class IntOrString:
    """Either of the two, as Kubernetes has it."""


def list_map(*keys: str) -> ListMap:
    """Mark a list whose items are told apart by these fields."""
    return ListMap(keys)


# How many processes a node runs, where a word may stand for "as many as it has devices".
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
