"""Builds the programs that the tests need, with progress output.

The tests run in several processes without a terminal. Missing programs are reported here and by the
tests that need them.
"""

import asyncio
import sys

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries, manifests
from kftrainer.devcluster.artifacts.versions import BINARIES, MANIFESTS
from kftrainer.devcluster.errors import MissingPartError
from kftrainer.devcluster.progress import Progress
from tests.support.upstream_chart import CHART
from tests.support.upstream_manifests import RELEASES

WANTED_MANIFESTS = (*MANIFESTS, CHART, *RELEASES.values())


async def gather() -> None:
    """Find or build every program and every manifest."""
    cache, progress = cache_paths.cache_home(), Progress(sys.stderr)
    await binaries.provide(BINARIES, cache=cache, progress=progress)
    for wanted in WANTED_MANIFESTS:
        await manifests.provide(wanted, cache=cache, progress=progress)


def main() -> int:
    """Build all programs; missing ones are reported."""
    try:
        asyncio.run(gather())
    except MissingPartError as error:
        print(error, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
