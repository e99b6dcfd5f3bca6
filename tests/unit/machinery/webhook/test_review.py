"""AdmissionReviews as bytes."""

from base64 import b64decode
from typing import Any

import orjson
import pytest

from kftrainer.machinery.webhook.admission import ALLOWED, AdmissionResponse
from kftrainer.machinery.webhook.review import (
    MalformedReviewError,
    decoded,
    encoded,
    excess_of,
    response_timeout,
)
from tests.support.reviews import UID, review, train_job


def nested(levels: int) -> Any:
    """Lists nested to this depth."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def shown(manifest: dict[str, Any]) -> dict[str, Any]:
    """The object as validators see it."""
    kept = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    return {**manifest, "metadata": kept}


def test_a_creation_has_an_object() -> None:
    request = decoded(orjson.dumps(review()))
    assert (request.uid, request.operation, request.dry_run) == (UID, "CREATE", False)
    assert (request.group, request.version) == ("trainer.kubeflow.org", "v1alpha1")
    assert (request.kind, request.namespace, request.name) == ("TrainJob", "default", "job")
    assert (request.object, request.old_object) == (shown(train_job()), None)


def test_an_update_has_two_objects() -> None:
    old, new = train_job(suspend=True), train_job()
    request = decoded(orjson.dumps(review(new, old, operation="UPDATE", dryRun=True)))
    assert (request.object, request.old_object) == (shown(new), shown(old))
    assert request.dry_run


def test_a_deletion_has_an_old_object_only() -> None:
    request = decoded(orjson.dumps(review(None, train_job(), operation="DELETE")))
    assert (request.object, request.old_object) == (None, shown(train_job()))


def test_missing_fields_are_empty() -> None:
    request = decoded(orjson.dumps(review(name=None, namespace=None, dryRun=None)))
    assert (request.name, request.namespace, request.dry_run) == ("", "", False)


MALFORMED: list[tuple[Any, str]] = [
    ([], "The body is not an AdmissionReview with a request."),
    ({}, "The body is not an AdmissionReview with a request."),
    ({**review(), "request": None}, "The body is not an AdmissionReview with a request."),
    ({**review(), "kind": "Pod"}, "The body is not an AdmissionReview of admission.k8s.io/v1."),
    (
        {**review(), "apiVersion": "admission.k8s.io/v1beta1"},
        "The body is not an AdmissionReview of admission.k8s.io/v1.",
    ),
    (review(uid=None), "request.uid is missing."),
    (review(uid=""), "request.uid is missing."),
    (review(uid=7), "uid is not a string."),
    (review(kind=None), "request.kind is missing."),
    (review(kind="TrainJob"), "kind is not an object."),
    (review(namespace=[]), "namespace is not a string."),
    (
        review(operation="PATCH"),
        "request.operation is not one of CREATE, UPDATE, DELETE, CONNECT.",
    ),
    (review(uid="u" * 129), "uid is longer than 128 characters."),
    (review(name="n" * 254), "name is longer than 253 characters."),
    (review(namespace="n" * 254), "namespace is longer than 253 characters."),
    (
        review(kind={"group": "g", "version": "v", "kind": "k" * 254}),
        "kind is longer than 253 characters.",
    ),
    (review(object=None), "request.object is missing from this CREATE."),
    (review(object="job"), "object is not an object."),
    (review(operation="UPDATE"), "request.oldObject is missing from this UPDATE."),
    (review(None, None, operation="DELETE"), "request.oldObject is missing from this DELETE."),
]


@pytest.mark.parametrize(("body", "words"), MALFORMED)
def test_invalid_review_is_reported_in_one_line(body: Any, words: str) -> None:
    with pytest.raises(MalformedReviewError) as raised:
        decoded(orjson.dumps(body))
    assert str(raised.value) == words


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b'{"a": "\xc3"}', b"[" * 100_000, b'{"a":' * 100_000, b"NaN"],
)
def test_invalid_json_is_reported_in_one_line(body: bytes) -> None:
    with pytest.raises(MalformedReviewError, match=r"^The body is not valid JSON: [^\n]*$"):
        decoded(body)


def test_an_object_that_is_nested_too_deep_for_validators_is_malformed() -> None:
    # The list stands in the spec of the object, and the innermost one is empty.
    good, bad = train_job(args=nested(99)), train_job(args=nested(100))
    assert decoded(orjson.dumps(review(good))).uid == UID
    for each in (review(bad), review(good, bad, operation="UPDATE")):
        with pytest.raises(MalformedReviewError, match="is nested deeper than 100 levels"):
            decoded(orjson.dumps(each))


def test_managed_fields_are_removed() -> None:
    old = train_job()
    old["metadata"]["managedFields"][0]["fieldsV1"] = nested(200)
    request = decoded(orjson.dumps(review(train_job(), old, operation="UPDATE")))
    for each in (request.object, request.old_object):
        assert each is not None
        assert "managedFields" not in each["metadata"]
        assert each["metadata"]["name"] == "job"


def test_depth_is_counted_in_objects_and_lists() -> None:
    value = {"a": [1, {"b": 2}], "c": "text"}
    assert excess_of({}, deepest=1) is None
    assert excess_of(value, deepest=3) is None
    assert excess_of(value, deepest=2) == "is nested deeper than 2 levels"
    assert excess_of(nested(100_000), deepest=99_998) == "is nested deeper than 99998 levels"


@pytest.mark.parametrize("value", [0, "", [], {}, [0]])
def test_an_object_of_too_many_values_is_malformed(value: Any) -> None:
    few, many = train_job(args=[value] * 50_000), train_job(args=[value] * 200_000)
    assert decoded(orjson.dumps(review(few))).uid == UID
    message = r"^(request.object|The body) has more than (200000 values|100000 objects and lists)"
    with pytest.raises(MalformedReviewError, match=message):
        decoded(orjson.dumps(review(many)))


@pytest.mark.parametrize("value", [0, [], {}, [0]])
def test_a_body_of_far_too_many_values_is_not_even_decoded(value: Any) -> None:
    body = orjson.dumps([value] * 1_000_001) + b"no JSON at its end"
    with pytest.raises(MalformedReviewError, match=r"^The body has more than 1000000 values\.$"):
        decoded(body)


def test_values_are_counted_at_all_levels() -> None:
    value = {"a": [1, {"b": 2}], "c": "text"}
    assert excess_of(value, most=5) is None
    assert excess_of(value, most=4) == "has more than 4 values"


def test_allowing_response() -> None:
    assert orjson.loads(encoded("u", ALLOWED)) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": True, "status": {"code": 200}},
    }


def test_patch_is_encoded() -> None:
    patch = [{"op": "remove", "path": "/spec/ä"}]
    response = orjson.loads(encoded("u", AdmissionResponse(allowed=True, patch=patch)))["response"]
    assert response.keys() == {"uid", "allowed", "status", "patch", "patchType"}
    assert response["patchType"] == "JSONPatch"
    assert orjson.loads(b64decode(response["patch"])) == patch


def test_denying_response_has_a_status_and_no_patch() -> None:
    response = AdmissionResponse(
        allowed=False,
        warnings=("mind",),
        code=403,
        reason="Forbidden",
        message="no",
        details={"name": "job", "causes": []},
    )
    assert orjson.loads(encoded("u", response))["response"] == {
        "uid": "u",
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 403,
            "reason": "Forbidden",
            "message": "no",
            "details": {"name": "job", "causes": []},
        },
        "warnings": ["mind"],
    }


@pytest.mark.parametrize(
    ("timeout", "within"),
    [("10s", 9.5), ("30s", 29.5), ("1h", 29.5), ("1s", 0.5), ("400ms", 0.2)]
    + [(nothing, 9.5) for nothing in (None, "", "0s", "soon", "-3s")],
)
def test_response_is_sent_before_the_api_server_timeout(timeout: str | None, within: float) -> None:
    assert response_timeout(timeout) == pytest.approx(within)
