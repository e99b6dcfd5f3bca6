"""An edit of a runtime enqueues its TrainJobs, however many, without decoding one of them."""

from collections.abc import Callable
from typing import Any

import pytest

from kftrainer.api.resources import TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.controllers.trainjob_index import TRAIN_JOB_INDEXES
from kftrainer.controllers.watches import enqueue_unfinished
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.cache import cached_object
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.predicates import content_changed
from kftrainer.machinery.controller.reconcile import DONE, Request, Result
from kftrainer.machinery.manager.clock import SystemClock
from tests.integration.controllers.burst import some_at_a_time
from tests.integration.controllers.team import TEST_TIMEOUT, Team
from tests.support.informers import connected, running

MANY = 100


class Recording:
    """Notes which TrainJobs it is to reconcile."""

    def __init__(self) -> None:
        self.requests: set[Request] = set()

    async def reconcile(self, request: Request) -> Result:
        self.requests.add(request)
        return DONE


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the objects that were decoded."""
    kinds: list[str] = []
    for kind in (cached_object.CachedObject, cached_object._Unpacked):
        decode = kind.object.fget  # type: ignore[attr-defined]

        def counted(self: Any, decode: Callable[[Any], Any] = decode) -> Any:
            kinds.append(self.manifest["kind"])
            return decode(self)

        monkeypatch.setattr(kind, "object", property(counted))
    return kinds


async def test_runtime_edit_enqueues_its_trainjobs_without_decoding_them(
    team: Team, plane: ControlPlane, decoded: list[str]
) -> None:
    await team.create_runtime()
    await some_at_a_time(team.create_job(f"job-{number}") for number in range(MANY))
    recording, clock, cache = Recording(), SystemClock(), Cache()
    async with connected(plane.kubeconfig) as client:
        at = {"clock": clock, "namespace": team.namespace}
        jobs = Informer(client, TRAIN_JOBS, **at, indexes=TRAIN_JOB_INDEXES)  # type: ignore[arg-type]
        runtimes = Informer(client, TRAINING_RUNTIMES, **at)  # type: ignore[arg-type]
        for informer in (jobs, runtimes):
            cache.add(informer)
        controller = Controller("edits", recording, clock=clock)
        handler = enqueue_unfinished(cache, TRAINING_RUNTIMES)
        controller.watch(runtimes, handler, content_changed)
        async with running(cache):
            await cache.wait_synced()
            async with running(controller):

                async def enqueued_all() -> bool:
                    return len(recording.requests) == MANY

                await until(enqueued_all, within=TEST_TIMEOUT, what="the first list")
                recording.requests.clear()
                decoded.clear()
                labels = {"labels": {"edited": "true"}}
                await team.patch("TrainingRuntime", "torch", {"metadata": labels})
                await until(enqueued_all, within=TEST_TIMEOUT, what="the edit being followed")
    assert decoded == []
