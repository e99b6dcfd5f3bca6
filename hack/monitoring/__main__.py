"""Draws docs/img/dashboard.svg: `PYTHONPATH=hack .venv/bin/python -m monitoring [SECONDS]`.

Two replicas of the manager run some forty TrainJobs on a real control plane, a real Prometheus
scrapes them, and the panels of the chart's dashboard are drawn from what it has seen.
"""

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.artifacts.versions import PROMETHEUS
from kftrainer.devcluster.controlplane import running
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.progress import Progress
from kftrainer.machinery.manager.clock import SystemClock
from monitoring.dashboard_image import Picture, Span
from monitoring.prometheus import Target, reader_token, scraping
from monitoring.sample_load import NAMESPACES, ROOT, SERVICE, SHAPE, managers, play, prepare_cluster

DASHBOARD = ROOT / "charts" / "kftrainer" / "files" / "dashboard.json"
IMAGE_PATH = ROOT / "docs" / "img" / "dashboard.svg"
VARIABLES = {"job": SERVICE, "namespace": ".*", "__rate_interval": "15s", "__range": "10m"}
SECONDS = 180.0
STEP = 3.0


async def picture(seconds: float) -> str:
    """Return the dashboard after a number of seconds, as SVG."""
    progress, clock = Progress(sys.stderr), SystemClock()
    cache = cache_paths.cache_home()
    program = (await binaries.provide([PROMETHEUS], cache=cache, progress=progress))["prometheus"]
    async with running(SHAPE, progress=progress) as plane, plane.client() as api:
        with TemporaryDirectory(prefix="prometheus-") as home:
            folder = Path(home)
            async with managers(plane, api) as addresses:
                await prepare_cluster(api)
                token = await reader_token(api, NAMESPACES[0], folder / "token")
                targets = [
                    Target(SERVICE, address, token, {"instance": f"replica {number}"})
                    for number, address in enumerate(addresses, 1)
                ]
                async with scraping(program, folder, targets) as prometheus:
                    start = clock.now().timestamp()
                    with progress.step(f"working for {seconds:g} s"):
                        accepted, refused = await play(api, clock, seconds)
                    print(f"{accepted} objects were created, and {refused} rejected.")
                    span = Span(start, start + seconds, STEP)
                    dashboard = json.loads(DASHBOARD.read_text())
                    return await Picture(prometheus, VARIABLES, span).draw(dashboard)


def main(arguments: list[str]) -> int:
    """Draw the dashboard; errors are one line on standard error."""
    try:
        image = asyncio.run(picture(float(arguments[0]) if arguments else SECONDS))
    except DevClusterError as error:
        print(f"monitoring: {error}", file=sys.stderr)
        return 1
    IMAGE_PATH.parent.mkdir(exist_ok=True)
    IMAGE_PATH.write_text(image)
    print(f"wrote: {IMAGE_PATH.relative_to(ROOT)} ({len(image.encode()) // 1024} KiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
