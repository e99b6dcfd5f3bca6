"""`make demo`: a real control plane, a real JobSet on fake nodes, and everything down again."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from kftrainer.devcluster import binaries, places
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.errors import DevClusterError, in_words
from kftrainer.devcluster.parts import KUBECTL
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.shape import FULL

MANIFEST = Path("hack/demo/jobset.yaml")
POD_SECONDS = 4


class Kubectl:
    """Shows each command as a person would type it, then runs it."""

    def __init__(self, program: Path, plane: ControlPlane) -> None:
        self._program = program
        self._environ = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}

    async def __call__(self, *arguments: str) -> None:
        print(f"\n$ kubectl {' '.join(arguments)}", flush=True)
        process = await asyncio.create_subprocess_exec(self._program, *arguments, env=self._environ)
        if await process.wait() != 0:
            raise DevClusterError(f"kubectl {arguments[0]} failed; its message is above.")


async def demo() -> None:
    """Run the demo; everything that was started is gone afterwards, also after Ctrl-C."""
    progress = Progress(sys.stderr)
    cache = places.cache_home()
    programs = await binaries.provide([KUBECTL], cache=cache, progress=progress)
    async with running(replace(FULL, pod_seconds=POD_SECONDS), progress=progress) as plane:
        kubectl = Kubectl(programs["kubectl"], plane)
        await kubectl("get", "nodes")
        await kubectl("apply", "-f", str(MANIFEST))
        pods_running = "--for=jsonpath={.status.replicatedJobsStatus[0].ready}=2"
        await kubectl("wait", pods_running, "jobset/demo", "--timeout=60s")
        await kubectl("get", "pods", "-o", "wide")
        await kubectl("wait", "--for=condition=Completed", "jobset/demo", "--timeout=60s")
        await kubectl("get", "jobset,job,pod")
    print("\nThe JobSet ran to its end, and the control plane is down again.")


def main() -> int:
    """Run the demo and tell errors as sentences."""
    try:
        asyncio.run(demo())
    except DevClusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: {in_words(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; nothing was left running.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
