"""Whether clients of all releases can decode what is shipped."""

from pathlib import Path

import pytest
import yaml

from kftrainer.api.schema.offline import with_defaults
from tests.support.client_shapes import undecodable
from tests.support.objects import Object, runtime, train_job
from tests.support.runtimes import SHIPPED

DEMO = Path(__file__).parents[3] / "hack" / "demo"
EXAMPLES = [
    document
    for file in sorted(DEMO.glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]


@pytest.mark.parametrize(
    "document", [*SHIPPED, *EXAMPLES], ids=lambda each: each["metadata"]["name"]
)
def test_clients_can_decode_shipped_runtimes(document: Object) -> None:
    assert undecodable(with_defaults(document)) == []


def test_undecodable_values_are_found() -> None:
    assert undecodable(train_job(trainer={"numProcPerNode": "auto"})) == [
        "spec.trainer.numProcPerNode: 'auto' is not an integer"
    ]
    assert undecodable(runtime(mlPolicy={"mpi": {"numProcPerNode": "4"}})) == [
        "spec.mlPolicy.mpi.numProcPerNode: '4' is not an integer"
    ]
    assert undecodable(runtime(mlPolicy={"torch": {"numProcPerNode": "auto"}})) == []
