"""What `make test` fetches and builds before the tests start."""

import build_tools

from kftrainer.devcluster.artifacts.versions import MANIFESTS, Manifests
from tests.support import upstream_chart


def test_manifests_that_tests_fetch_are_fetched_before() -> None:
    of_tests = [each for each in vars(upstream_chart).values() if isinstance(each, Manifests)]
    assert set(build_tools.WANTED_MANIFESTS) == {*MANIFESTS, *of_tests}
