"""What `make test` fetches and builds before the tests start."""

import build_tools

from kftrainer.devcluster.artifacts.versions import MANIFESTS, Manifests
from tests.support import upstream_chart
from tests.support.upstream_manifests import RELEASES


def test_manifests_that_tests_fetch_are_fetched_before() -> None:
    of_tests = [each for each in vars(upstream_chart).values() if isinstance(each, Manifests)]
    wanted = {*MANIFESTS, *of_tests, *RELEASES.values()}
    assert set(build_tools.WANTED_MANIFESTS) == wanted
