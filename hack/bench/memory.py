"""`make bench`: memory of a cache that holds the largest objects that tenants can store.

Each row is a process of its own that puts objects into the store of an informer, as a list would.
What a manager needs besides is the memory of one that has nothing to do, see `bench.endtoend`.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench.machinery import row
from kftrainer.api.limits import OBJECT_BYTES
from kftrainer.api.resources import JOB_SETS, SECRETS, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.controllers.large_objects import reduction_of
from kftrainer.controllers.trainjob_index import TRAIN_JOB_INDEXES
from kftrainer.kube.objects.resource import Resource
from kftrainer.machinery.cache.cached_object import CachedObjectFactory
from kftrainer.machinery.cache.reduction import LARGE
from kftrainer.machinery.cache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = Path(__file__).parent.parent / "run.py"
MIB = 2**20
STORED = 1_300_000  # bytes: more than the limits allow, and as much as etcd stores


def padded(resource: Resource[Any], number: int, size: int, where: str) -> dict[str, Any]:
    """Return an object of about this size; what makes it large is in `where`."""
    owner = {"kind": "TrainJob", "name": f"o-{number}", "uid": f"{number:036x}", "controller": True}
    metadata: dict[str, Any] = {
        "name": f"o-{number}",
        "namespace": f"team-{number % 10}",
        "uid": f"{number:036x}",
        "resourceVersion": str(number + 1),
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"apiVersion": TRAIN_JOBS.api_version, **owner}],
    }
    spec: dict[str, Any] = {"suspend": True}
    if resource is TRAIN_JOBS:
        spec["runtimeRef"] = {"name": f"runtime-{number % 10}"}
    if where == "spec":
        spec["args"] = ["x" * (size - 600)]
    elif where == "labels":
        metadata["labels"] = {f"example.com/l{n}": "x" * 60 for n in range((size - 600) // 84)}
    else:
        metadata["annotations"] = {"example.com/a": "x" * (size - 600)}
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**head, "metadata": metadata, "spec": spec}


ROWS: dict[str, tuple[Resource[Any], int, str]] = {
    "TrainJobs just held whole": (TRAIN_JOBS, LARGE, "spec"),
    "TrainJobs at the limit": (TRAIN_JOBS, OBJECT_BYTES, "spec"),
    "TrainJobs at the limit, by labels": (TRAIN_JOBS, OBJECT_BYTES, "labels"),
    "TrainJobs that were stored without limits": (TRAIN_JOBS, STORED, "spec"),
    "JobSets just held whole": (JOB_SETS, LARGE, "spec"),
    "JobSets at the limit": (JOB_SETS, OBJECT_BYTES, "spec"),
    "TrainingRuntimes just held whole": (TRAINING_RUNTIMES, LARGE, "spec"),
    "TrainingRuntimes at the limit": (TRAINING_RUNTIMES, OBJECT_BYTES, "spec"),
    "Secrets of a TrainJob, by annotations": (SECRETS, OBJECT_BYTES, "annotations"),
}


def memory() -> int:
    """Return the bytes that this process has in memory."""
    [kib] = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib) * 1024


def hold(what: str, count: int) -> None:
    """Fill a store and print by how many bytes the process has grown."""
    resource, size, where = ROWS[what]
    indexes: dict[str, Callable[..., Any]] = TRAIN_JOB_INDEXES if resource is TRAIN_JOBS else {}
    reduction = reduction_of(resource, is_owned=True)
    maker: CachedObjectFactory[Any] = CachedObjectFactory(
        resource, None, indexes, reduction=reduction
    )
    store: Store[Any] = Store(indexes)
    before = memory()
    for number in range(count):
        # As it comes from the API server: nothing of it is shared with other objects.
        read = orjson.loads(orjson.dumps(padded(resource, number, size, where)))
        store.upsert(maker.make(read))
    print(memory() - before)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.hold:
        hold(told.hold, told.objects)
        return 0
    for what in ROWS:
        argv = (sys.executable, str(RUN), "bench.memory", "--hold", what)
        count = ("--objects", str(told.objects))
        output = subprocess.run((*argv, *count), capture_output=True, check=True, text=True)
        grown = int(output.stdout)
        each = f"{grown / told.objects:,.0f} bytes each, of {ROWS[what][1]:,}"
        row(f"{told.objects:,} {what}", f"{grown / MIB:,.0f} MiB", each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
