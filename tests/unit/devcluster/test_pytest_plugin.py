"""What the fixtures do where no binaries can be had: a run of pytest inside the test."""

from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.integration
async def test_needs_a_server(api):
    assert False, "it ran"

@pytest.mark.e2e
async def test_needs_a_cluster(namespace):
    assert False, "it ran"

def test_needs_nothing():
    pass

def test_says_nothing(control_plane):
    assert False, "it ran"
"""


@pytest.fixture
def bare_machine(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """No Go, no network, nothing built."""
    for name in (
        "KUBEBUILDER_ASSETS",
        "KFTRAINER_REQUIRE_REAL",
        "PIP_FIND_LINKS",
        "PIP_EXTRA_INDEX_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    pytester.makepyfile(TESTS)
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    plugin = ("-p", "kftrainer.devcluster.pytest_plugin")
    return pytester.runpytest_subprocess(*plugin, *arguments)


def test_tests_without_a_control_plane_are_skipped_and_counted_at_the_end(
    bare_machine: pytest.Pytester,
) -> None:
    result = run(bare_machine, "--deselect=test_x.py", "-k", "needs")
    result.assert_outcomes(passed=1, skipped=2, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "*NOT TESTED*",
            "2 tests did not run, because a real control plane could not be had:",
            "  Go 1.26 or newer is needed to build the control plane*KUBEBUILDER_ASSETS*",
        ]
    )


def test_where_real_parts_are_required_they_fail_instead(
    bare_machine: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFTRAINER_REQUIRE_REAL", "1")
    result = run(bare_machine, "-k", "needs")
    result.assert_outcomes(passed=1, errors=2, deselected=1)
    result.stdout.fnmatch_lines(["*no real control plane: Go 1.26 or newer is needed*"])


def test_test_without_cluster_marker_is_an_error(bare_machine: pytest.Pytester) -> None:
    result = run(bare_machine, "-k", "says_nothing")
    result.assert_outcomes(errors=1, deselected=3)
    result.stdout.fnmatch_lines(["*mark the test `integration`, `e2e` or `process_nodes`*"])
