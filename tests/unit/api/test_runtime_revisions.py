"""Content of runtimes in ControllerRevisions, and the names derived from it."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.api.resources import CONTROLLER_REVISIONS, TRAINING_RUNTIMES
from kftrainer.api.runtime_revisions import (
    content_of,
    has_content_of,
    other_names,
    revision_manifest,
    revision_name,
)
from kftrainer.kube.schema.metadata import LONGEST_NAME
from tests.support.objects import Object, runtime

LABEL = "trainer.kubeflow.org/runtime-kind"


def content(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return content_of(TRAINING_RUNTIMES.decode(manifest))


def with_metadata(**metadata: Any) -> Object:
    manifest = runtime()
    return {**manifest, "metadata": {**manifest["metadata"], **metadata}}


def revision(**changes: Any) -> Object:
    """Return a ControllerRevision as the API server returns it."""
    found = content(runtime())
    manifest = {**revision_manifest(found, "team", revision_name(found), 1), **changes}
    stored: Object = orjson.loads(orjson.dumps(manifest))
    return stored


NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def as_the_server_returns(value: Any) -> Any:
    """Reverse the order of fields, and write floats that are integers as such."""
    if isinstance(value, dict):
        fields = reversed(list(value.items()))
        return {key: as_the_server_returns(each) for key, each in fields}
    if isinstance(value, list):
        return [as_the_server_returns(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    return value


@given(DOCUMENTS)
def test_name_is_unchanged_by_a_round_trip(document: Any) -> None:
    spec = {"template": {"spec": {"x": document}}}
    before = {"kind": "TrainingRuntime", "metadata": {"name": "torch"}, "spec": spec}
    after = as_the_server_returns(before)
    assert revision_name(after) == revision_name(before)


def test_name_depends_on_kind_name_and_spec() -> None:
    found = [
        revision_name({"kind": kind, "metadata": {"name": name}, "spec": spec})
        for kind in ("TrainingRuntime", "ClusterTrainingRuntime")
        for name in ("torch", "other")
        for spec in ({"a": 1}, {"a": 2})
    ]
    assert len(set(found)) == len(found)


def test_name_of_this_release_is_the_one_of_every_release() -> None:
    """Names are recorded in clusters: a change of the form needs another FORM."""
    assert revision_name({"kind": "K", "metadata": {"name": "torch"}, "spec": {"a": 1.0}}) == (
        NAME_IN_CLUSTERS
    )


NAME_IN_CLUSTERS = "torch-6fa07192e4407829cd261021f2a1c559"


@pytest.mark.parametrize("name", ["a", "a" * 253, "a" * 199 + "." + "b" * 53])
def test_name_is_a_valid_object_name(name: str) -> None:
    derived = revision_name({"kind": "TrainingRuntime", "metadata": {"name": name}})
    names = [derived, *other_names(derived)]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= LONGEST_NAME
    assert all(has_content_of(each, derived) for each in names)
    assert ".-" not in derived


@pytest.mark.parametrize("other", ["-0", "-4", "-1-1", "x", "-"])
def test_other_suffixes_are_not_names_of_the_content(other: str) -> None:
    derived = revision_name(content(runtime()))
    assert not has_content_of(derived + other, derived)


def test_bookkeeping_of_tools_is_not_part_of_the_content() -> None:
    bookkeeping = {
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "meta.helm.sh/release-name": "kubeflow",
        "trainer.kubeflow.org/shipped-hash": "torch/1",
    }
    labels = {
        "helm.sh/chart": "kftrainer-1",
        "trainer.kubeflow.org/managed-by": "kftrainer",
        "trainer.kubeflow.org/support": "deprecated",
    }
    plain = content(with_metadata(labels={}))
    assert content(with_metadata(annotations=bookkeeping, labels=labels)) == plain


def test_settings_in_annotations_are_part_of_the_content() -> None:
    settings = {"trainer.kubeflow.org/torchtune-model": "x", "example.com/policy": "{}"}
    assert content(with_metadata(annotations=settings))["metadata"]["annotations"] == settings


def test_verified_revision_is_usable() -> None:
    found = CONTROLLER_REVISIONS.decode(revision())
    assert (found.is_usable, found.content) == (True, content(runtime()))


DATA = revision()["data"]
METADATA = revision()["metadata"]


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {**DATA, "spec": {**DATA["spec"], "mlPolicy": {"numNodes": 2}}}},
        {"data": {**DATA, "kind": "ClusterTrainingRuntime"}},
        {"data": None},
        {"data": []},
        {"data": {"metadata": {"name": 1}}},
        {"data": {}},
        {"metadata": {**METADATA, "name": "torch"}},
        {"metadata": {**METADATA, "name": f"{METADATA['name']}-9"}},
        {"metadata": {**METADATA, "labels": {}}},
        {"metadata": {**METADATA, "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
)
def test_forged_or_deleted_revision_is_not_usable(changes: Object) -> None:
    assert not CONTROLLER_REVISIONS.decode(revision(**changes)).is_usable
