from typing import TYPE_CHECKING, cast

from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.jobset.deleted_jobsets import DeletedJobSets
from kftrainer.controllers.trainjob.planner import Planner
from kftrainer.runtime.cluster_reader import NO_OBJECTS
from kftrainer.runtime.framework.extension_points import Observed
from tests.support.fake_clock import FakeClock
from tests.support.objects import train_job

if TYPE_CHECKING:
    from kftrainer.controllers.overlay_cache import OverlayCache
    from kftrainer.kube.client.client import Client
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
