"""For any file, `kftrainer validate` exits with 0, 1 or 2 and prints the reason."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from kftrainer.cli.main import main
from kftrainer.runtime.plugins import PLUGIN_RULES
from kftrainer.runtime.validation.rules import Rule
from tests.support.objects import API, Object, train_job
from tests.support.random_objects import corpus, mutants

MANY = 4_000
LONGEST = 20.0  # seconds of CPU; it takes about four
WORDS = st.sampled_from(("name", "spec", "metadata", "env", "kind", "items", "replicatedJobs", "x"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=20,
)
KINDS = st.sampled_from(
    ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "TrainJobList", "List")
)
OBJECTS = st.builds(
    lambda kind, rest: {"apiVersion": API, "kind": kind, **rest},
    KINDS,
    st.dictionaries(st.sampled_from(("metadata", "spec", "items", "status")), VALUES),
)


@contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    with patch("sys.stdin", io.TextIOWrapper(io.BytesIO(data))):
        yield


def outcome(data: bytes) -> tuple[int, list[Any]]:
    """How it ends, and the list that it prints."""
    out, err = io.StringIO(), io.StringIO()
    with standard_input(data), redirect_stdout(out), redirect_stderr(err):
        code = main(["validate", "-f", "-", "-o", "json"])
    assert err.getvalue() == ""
    return code, json.loads(out.getvalue())


def check(data: bytes) -> None:
    code, findings = outcome(data)
    types = [each["type"] for each in findings if each["severity"] == "error"]
    assert code == (2 if "Unreadable" in types else 1 if types else 0)
    most = len(data.decode(errors="replace").splitlines()) + 1  # what is missing may be at the end
    for each in findings:
        assert set(each) == {"file", "line", "path", "type", "message", "severity", "rule"}
        assert each["rule"] in (None, *Rule, *PLUGIN_RULES)
        assert each["file"] == "<stdin>"
        assert each["line"] is None or 1 <= each["line"] <= most
        assert each["message"]


@given(st.binary() | st.text().map(str.encode))
@example(b"")
@example(b"\xef\xbb\xbf{}")
def test_any_bytes(data: bytes) -> None:
    check(data)


@given(st.lists(VALUES | OBJECTS, max_size=3))
def test_any_documents(documents: list[Any]) -> None:
    check(yaml.safe_dump_all(documents, allow_unicode=True).encode())


RUNTIMES = {
    (each["kind"], each["metadata"]["name"]): each
    for each in corpus()
    if each["kind"] != "TrainJob"
}


def companions(mutant: Object) -> list[Object]:
    """Objects that cause its validation: the runtimes for a TrainJob, a TrainJob for a runtime."""
    if mutant["kind"] == "TrainJob":
        return [*RUNTIMES.values()]
    metadata = mutant.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    trainer = {"numNodes": 2, "args": ["-x"], "resourcesPerNode": {"limits": {"cpu": 1}}}
    reference = {"kind": mutant["kind"], "name": name or "x"}
    return [train_job("a-train-job", runtimeRef=reference, trainer=trainer)]


@pytest.mark.parametrize("seed", range(4))
def test_valid_documents(seed: int) -> None:
    for _, mutant in mutants(seed, 100):
        check("\n".join(map(json.dumps, (*companions(mutant), mutant))).encode())


def test_many_documents_at_once(tmp_path: Path) -> None:
    jobs = (train_job(f"job-{n}", trainer={"numNodes": n % 2}) for n in range(MANY))
    runtimes = [each for each in corpus() if each["kind"] == "ClusterTrainingRuntime"][:1]
    file = tmp_path / "many.yaml"
    file.write_text("\n---\n".join(map(json.dumps, (*runtimes, *jobs))))
    before = process_time()
    with redirect_stdout(io.StringIO()) as out:
        assert main(["validate", "-f", str(file)]) == 1
    assert process_time() - before < LONGEST
    assert out.getvalue().count("numNodes: Invalid value: 0") == MANY / 2
