from typing import TYPE_CHECKING, Any, cast

import orjson

from kftrainer.api.resources import CONTROLLER_REVISIONS, JOB_SETS, TRAINING_RUNTIMES
from kftrainer.api.runtime_revisions import content_of, revision_manifest, revision_name
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.large_objects import REDUCTIONS
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.controllers.trainjob.jobset.deleted_jobsets import DeletedJobSets
from kftrainer.controllers.trainjob.planner import Planner
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.transport import Response
from kftrainer.runtime.cluster_reader import NO_OBJECTS
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.info import key_of_job
from tests.support.fake_clock import FakeClock
from tests.support.object_server import refusal
from tests.support.objects import Object, runtime, train_job
from tests.support.plans import NAMESPACE, RUNTIMES, container_of, job_on

if TYPE_CHECKING:
    from kftrainer.runtime.runtimes import Runtimes


def test_foreign_job_set_deleted_concurrently_is_observed() -> None:
    planner = Planner(
        cast("Client", None),
        cast("OverlayCache", NO_OBJECTS),
        cast("Runtimes", None),
        DeletedJobSets(),
        clock=FakeClock(),
    )
    job = TrainJob.parse(train_job("train"))
    found = [planner.observe_foreign(job, each) for each in (None, {"spec": {"suspend": True}})]
    assert found == [None, Observed(jobs=(), suspended=True)]


class EmptyCache:
    """A Cache in which no kind has objects, as when all watches lag."""

    def informer(self, _: object) -> "EmptyCache":
        return self

    def is_readable(self, _: str | None) -> bool:
        return True

    def version_in(self, _: str) -> str:
        return "1"

    def cached_object(self, _: object) -> None:
        return None


class Server:
    """A Transport to a server with one object."""

    def __init__(self, stored: Object) -> None:
        self._stored = stored

    async def request(self, _method: str, path: str, **_: object) -> Response:
        if path.endswith(f"/{self._stored['metadata']['name']}"):
            return Response(200, {}, orjson.dumps(self._stored))
        return refusal(404, "NotFound", path)

    async def close(self) -> None:
        """Nothing is open."""


async def test_large_revision_that_the_cache_lacks_is_read_completely() -> None:
    document = runtime()
    containers = document["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = containers["template"]["spec"]["containers"][0]
    container["args"] = ["x" * 1000 for _ in range(30)]
    content = content_of(TRAINING_RUNTIMES.decode(document))
    name = revision_name(content)
    stored = revision_manifest(content, NAMESPACE, name, 1)
    stored["metadata"] |= {"uid": "1", "resourceVersion": "7"}
    cache: Any = EmptyCache()
    transport: Any = Server(stored)
    watched = [CONTROLLER_REVISIONS, TRAINING_RUNTIMES, JOB_SETS]
    view = OverlayCache(cache, watched, {}, REDUCTIONS, complete_kinds=[CONTROLLER_REVISIONS])
    planner = Planner(Client(transport), view, RUNTIMES, DeletedJobSets(), clock=FakeClock())
    job = TrainJob.parse({**job_on(document), "status": {"runtimeRevision": name}})
    with view.scope(key_of_job(job)):
        plan = await planner.plan_objects(job)
    assert plan.source is not None
    assert not plan.source.is_live
    [job_set] = [each.manifest for each in plan.applicable.objects if each.resource is JOB_SETS]
    assert container_of(job_set)["args"] == container["args"]
