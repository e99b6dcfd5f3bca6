"""Base class of typed objects: strict, frozen, and lossless."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, SkipValidation, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

Document = Mapping[str, Any]
FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a document, and its path."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidDocumentError(ValueError):
    """A document that does not match its type; `problems` lists everything that is wrong."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class KubeModel(BaseModel):
    """A typed view of a document: camelCase outside, snake_case inside, unknown fields kept.

    Strict like the API server: `"3"` is not 3. Parsing and dumping returns the same document.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="allow",
        frozen=True,
        strict=True,
        # Python names are not accepted: `num_nodes` in a document is unknown, and kept.
        validate_by_alias=True,
        validate_by_name=False,
        protected_namespaces=(),
    )

    @classmethod
    def parse(cls, document: Document) -> Self:
        """Parse the document; raise InvalidDocumentError with all of its problems."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise InvalidDocumentError(problems_of(error)) from None

    def dump(self) -> dict[str, Any]:
        """Return the document that this was parsed from; opaque parts are not copied."""
        extra = self.model_extra or {}
        document = dict(extra)
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            # An unknown field with the Python name of ours does not mean that ours was set.
            if name in self.model_fields_set and (name not in extra or value != field.default):
                document[field.alias or name] = _dumped(value)
        return document


def _dumped(value: object) -> object:
    if isinstance(value, KubeModel):
        return value.dump()
    if isinstance(value, list):
        return [_dumped(each) for each in value]
    return value


def _mapping(value: object) -> object:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("mapping", "must be an object")
    return value


def _list(value: object) -> object:
    if not isinstance(value, list):
        raise PydanticCustomError("list", "must be a list")
    return value


# Parts of Kubernetes' own objects: already validated by the API server, so not traversed.
Opaque = Annotated[Mapping[str, Any], SkipValidation, BeforeValidator(_mapping)]
OpaqueList = Annotated[Sequence[Mapping[str, Any]], SkipValidation, BeforeValidator(_list)]


def problems_of(error: ValidationError) -> list[Problem]:
    """Return pydantic's errors in the API server's words."""
    return [Problem(_path(each["loc"]), _message(each)) for each in error.errors(include_url=False)]


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step == "[key]":
            continue
        elif not FIELD_NAME.fullmatch(step):
            path += f"[{step}]"  # a map key, such as a label's
        else:
            path += f".{step}" if path else step
    return path


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is required",
    "extra_forbidden": lambda _: "is not a known field",
    "int_type": lambda _: "must be an integer",
    "int_from_float": lambda _: "must be an integer",
    "float_type": lambda _: "must be a number",
    "string_type": lambda _: "must be a string",
    "bool_type": lambda _: "must be true or false",
    "list_type": lambda _: "must be a list",
    "dict_type": lambda _: "must be an object",
    "mapping_type": lambda _: "must be an object",
    "model_type": lambda _: "must be an object",
    "literal_error": lambda context: f"must be one of {context['expected'].replace(' or ', ', ')}",
    "greater_than_equal": lambda context: f"must be at least {context['ge']}",
    "less_than_equal": lambda context: f"must be at most {context['le']}",
    "string_too_short": lambda context: (
        f"must have at least {_many(context['min_length'], 'character')}"
    ),
    "string_too_long": lambda context: (
        f"must have at most {_many(context['max_length'], 'character')}"
    ),
    "too_short": lambda context: f"must have at least {_many(context['min_length'], 'item')}",
    "too_long": lambda context: f"must have at most {_many(context['max_length'], 'item')}",
    "string_pattern_mismatch": lambda context: f"must match {context['pattern']}",
}


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _message(error: ErrorDetails) -> str:
    words = _WORDS.get(error["type"])
    return words(error.get("ctx", {})) if words else error["msg"]
