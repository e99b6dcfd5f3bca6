"""The content of a runtime as a ControllerRevision holds it, and the name derived from it.

The name contains a digest of the content. Every client that may write ControllerRevisions can
create one with any name, labels and owners, so only an object whose content has the digest in its
name is used.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from kftrainer.api import names
from kftrainer.api.trainingruntime import ClusterTrainingRuntime, TrainingRuntime
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.nested import nested_field
from kftrainer.kube.objects.resource import Manifest

# Changes with the form of the content, so that names of different forms never collide.
FORM: Final = b"runtime/1"
DIGEST_BYTES: Final = 16
LONGEST_PREFIX: Final = 200  # characters of the runtime's name; object names have at most 253
# Further names of the same content, for the case that other objects have the first one.
MOST_OTHER_NAMES: Final = 3
NAME: Final = re.compile(rf"(.+-[0-9a-f]{{{2 * DIGEST_BYTES}}})(?:-[1-{MOST_OTHER_NAMES}])?")
# Plugins may read any annotation of a runtime. The following are written by tools and never are
# settings; without them, a release that changes nothing else creates no revisions.
BOOKKEEPING: Final = ("kubectl.kubernetes.io/", "meta.helm.sh/", "helm.sh/")
OWN_BOOKKEEPING: Final = frozenset({names.LABEL_MANAGED_BY, names.ANNOTATION_SHIPPED_HASH})
# A runtime may be deprecated later, which its TrainJobs should warn about.
EXCLUDED: Final = OWN_BOOKKEEPING | {names.LABEL_SUPPORT}
LARGEST_INTEGER: Final = 2.0**53  # up to which a float can be an exact integer


def content_of(runtime: TrainingRuntime | ClusterTrainingRuntime) -> Manifest:
    """Return everything of the runtime that planning may read, in a canonical form."""
    metadata: dict[str, Any] = {"name": runtime.metadata.name}
    labels, annotations = runtime.metadata.labels or {}, runtime.metadata.annotations or {}
    if kept := {key: value for key, value in labels.items() if _is_kept_label(key)}:
        metadata["labels"] = kept
    if kept := {key: value for key, value in annotations.items() if _is_kept_annotation(key)}:
        metadata["annotations"] = kept
    content: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": runtime.kind,
        "metadata": metadata,
    }
    if runtime.spec is not None:
        content["spec"] = _canonical(runtime.spec.dump())
    return content


def revision_name(content: Manifest) -> str:
    """Return the name of the ControllerRevision with this content."""
    encoded = orjson.dumps(_canonical(content), option=orjson.OPT_SORT_KEYS)
    digest = hashlib.blake2b(encoded, digest_size=DIGEST_BYTES, person=FORM).hexdigest()
    prefix = str(content["metadata"]["name"])[:LONGEST_PREFIX].rstrip(".-")
    return f"{prefix}-{digest}"


def other_names(name: str) -> Iterator[str]:
    """Yield further names for the content that a name was derived from."""
    return (f"{name}-{number}" for number in range(1, MOST_OTHER_NAMES + 1))


def has_content_of(name: str, derived: str) -> bool:
    """Whether `name` stands for the content from which `derived` was computed."""
    found = NAME.fullmatch(name)
    return found is not None and found[1] == derived


@dataclass(frozen=True, slots=True)
class RuntimeRevision:
    """A ControllerRevision; `content` is None unless it has the digest that is in the name."""

    metadata: ObjectMeta
    content: Manifest | None
    size: int = 0  # bytes of the content as JSON

    @property
    def is_usable(self) -> bool:
        """Whether TrainJobs may begin with it: verified, cached by its label, and not deleted.

        An object with owners is deleted together with them.
        """
        is_labelled = names.LABEL_RUNTIME_KIND in (self.metadata.labels or {})
        is_kept = self.metadata.deletion_timestamp is None and not self.metadata.owner_references
        return self.content is not None and is_labelled and is_kept

    @staticmethod
    def decode(manifest: Manifest) -> "RuntimeRevision":
        """Decode a ControllerRevision and verify its content."""
        metadata, content = ObjectMeta.parse(manifest["metadata"]), manifest.get("data")
        is_named = bool(nested_field(content, "metadata", "name"))
        if not isinstance(content, Mapping) or not is_named or not NAME.fullmatch(metadata.name):
            return RuntimeRevision(metadata, None)
        try:
            derived = revision_name(content)
        except (TypeError, RecursionError):  # nested too deeply to be encoded
            return RuntimeRevision(metadata, None)
        if not has_content_of(metadata.name, derived):
            return RuntimeRevision(metadata, None)
        return RuntimeRevision(metadata, content, len(orjson.dumps(content)))


def revision_manifest(content: Manifest, namespace: str, name: str, number: int) -> Manifest:
    """Return the ControllerRevision to create."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL_RUNTIME_KIND: content["kind"]},
        },
        "revision": number,
        "data": content,
    }


def _is_kept_label(key: str) -> bool:
    return key.startswith(f"{names.GROUP}/") and key not in EXCLUDED


def _is_kept_annotation(key: str) -> bool:
    return not key.startswith(BOOKKEEPING) and key not in EXCLUDED


def _canonical(value: Any) -> Any:
    """Return the value with numbers as the API server returns them: 1.0 becomes 1."""
    if isinstance(value, Mapping):
        return {key: _canonical(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_INTEGER:
        return int(value)
    return value
