"""Offline errors of a creation; tests/integration/cli/test_validate.py compares with the server."""

import copy

from kftrainer.api.schema.creation import creation_errors
from tests.support.objects import Object, runtime, train_job
from tests.support.random_objects import corpus


def error_messages(document: Object) -> list[str]:
    before = copy.deepcopy(document)
    found = [str(error) for error in creation_errors(document)]
    assert document == before
    return found


def test_valid_documents_have_no_errors() -> None:
    assert [error_messages(document) for document in corpus()] == [[] for _ in corpus()]


def test_all_errors_are_reported_together() -> None:
    job = train_job("1st", trainer={"numNodes": 0, "numProcPerNode": "many", "imge": "x"})
    assert error_messages(job) == [
        "spec.trainer.imge: Unknown field: did you mean image?",
        "spec.trainer.numNodes: Invalid value: 0: must be at least 1",
        *(each for each in error_messages(train_job("1st")) if each.startswith("metadata.name")),
        'spec.trainer.numProcPerNode: Invalid value: "many": NumProcPerNode must be equal to auto, '
        "cpu, gpu, or int value",
    ]


def test_rules_are_skipped_for_invalid_structure() -> None:
    job = train_job(trainer={"numNodes": "2", "numProcPerNode": "many"})
    assert error_messages(job) == ["spec.trainer.numNodes: Invalid value: must be an integer"]


def test_status_is_checked_for_unknown_fields_only() -> None:
    assert error_messages({**train_job(), "status": {"conditions": "x"}}) == []
    assert error_messages({**train_job(), "status": {"x": 1}}) == ["status.x: Unknown field"]


def test_metadata_that_cannot_be_read() -> None:
    assert error_messages({**train_job(), "metadata": []}) == [
        "metadata: Invalid value: must be an object"
    ]
    assert error_messages({**train_job(), "metadata": None})[0].startswith(
        "metadata.name: Required value"
    )
    malformed = runtime()
    malformed["metadata"] = {"name": 3, "labels": {"a": True}, "lables": {}}
    assert error_messages(malformed) == [
        "metadata.lables: Unknown field: did you mean labels?",
        "metadata.name: Invalid value: must be a string: put it in quotes",
        "metadata.labels.a: Invalid value: must be a string: put it in quotes",
    ]


def test_generated_name_is_validated() -> None:
    job = train_job()
    job["metadata"] = {"generateName": "a-"}
    assert error_messages(job) == []
    job["metadata"] = {"generateName": "1-"}
    [error] = creation_errors(job)
    assert (error.path, error.detail) == (
        "metadata.name",
        "metadata.name must match RFC 1035 DNS label format",
    )
