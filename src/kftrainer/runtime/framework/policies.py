"""Policies: the settings of a plugin in a runtime, in a field of its spec or in an annotation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import orjson
from pydantic import ConfigDict

from kftrainer.api.trainingruntime import TrainingRuntimeSpec
from kftrainer.kube.objects.field_errors import FieldError, invalid
from kftrainer.kube.objects.model import InvalidDocumentError, KubeModel
from kftrainer.runtime.errors import InvalidRuntimeError
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.template import subject_of
from kftrainer.runtime.validation.rules import Rule

M = TypeVar("M", bound=KubeModel)


class PolicyModel(KubeModel):
    """Base class of the policies of third-party plugins; unknown fields are rejected.

    Fields are camelCase in the annotation and snake_case in Python.
    """

    model_config = ConfigDict(extra="forbid")


class Policy(ABC, Generic[M]):
    """Where the settings of a plugin are in a runtime, and their type."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def of(self, runtime: AnyRuntime) -> M | None:
        """Return the policy of the runtime, or None; raises InvalidRuntimeError."""

    def is_set(self, runtime: AnyRuntime) -> bool:
        """Whether the runtime has the policy, valid or not."""
        return self.of(runtime) is not None

    def errors(self, _runtime: AnyRuntime) -> Sequence[FieldError]:
        """Return the errors of the policy."""
        return ()


class FieldPolicy(Policy[M]):
    """A policy in a field of the runtime's spec, which the API server validates."""

    def __init__(self, path: str, find: Callable[[TrainingRuntimeSpec], M | None]) -> None:
        super().__init__(path)
        self._find = find

    def of(self, runtime: AnyRuntime) -> M | None:
        """Return the policy of the runtime, or None."""
        return None if runtime.spec is None else self._find(runtime.spec)


class AnnotationPolicy(Policy[M]):
    """A policy in an annotation of the runtime, as a JSON object."""

    def __init__(self, annotation: str, model: type[M]) -> None:
        super().__init__(f"metadata.annotations[{annotation}]")
        self._annotation = annotation
        self._model = model

    def is_set(self, runtime: AnyRuntime) -> bool:
        """Whether the runtime has the annotation."""
        return self._annotation in (runtime.metadata.annotations or {})

    def of(self, runtime: AnyRuntime) -> M | None:
        """Return the policy of the runtime, or None; raises InvalidRuntimeError."""
        text = (runtime.metadata.annotations or {}).get(self._annotation)
        if text is None:
            return None
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise self._invalid(runtime, text, f"is not valid JSON: {error}") from None
        if not isinstance(document, dict):
            raise self._invalid(runtime, text, "must be a JSON object")
        try:
            return self._model.parse(document)
        except InvalidDocumentError as error:
            details = "; ".join(map(str, error.problems))
            raise self._invalid(runtime, text, details) from None

    def errors(self, runtime: AnyRuntime) -> Sequence[FieldError]:
        """Return the errors of the annotation."""
        try:
            self.of(runtime)
        except InvalidRuntimeError as error:
            return error.errors
        return ()

    def _invalid(self, runtime: AnyRuntime, text: str, detail: str) -> InvalidRuntimeError:
        error = invalid(self.path, text, detail, rule=Rule.SCHEMA)
        return InvalidRuntimeError(subject_of(runtime), error)
