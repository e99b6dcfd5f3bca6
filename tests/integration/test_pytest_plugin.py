"""The fixtures on a real control plane: a run of pytest inside the test."""

import pytest

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.controlplane import ControlPlane

CACHE = cache_paths.cache_home()  # now, as pytester changes HOME
TESTS = """
import pytest

pytestmark = pytest.mark.integration
seen = set()

@pytest.mark.parametrize("n", range(2))
async def test_every_test_has_a_namespace_of_its_own(namespace, api, n):
    assert namespace not in seen
    seen.add(namespace)

async def test_fails(control_plane):
    [apiserver] = [p for p in control_plane.processes if p.name == "kube-apiserver"]
    with apiserver.log.open("a") as log:
        log.write("said during the test\\n")
    raise AssertionError("on purpose")
"""


def test_logs_of_a_failed_test_are_printed_and_namespaces_are_fresh(
    control_plane: ControlPlane, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE.parent))
    assert control_plane  # the binaries are there
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nasyncio_mode = auto\n")
    plugin = ("-p", "kftrainer.devcluster.pytest_plugin")
    result = pytester.runpytest_subprocess(*plugin)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*on purpose*", "*log of kube-apiserver during the test*", "said during the test"]
    )
