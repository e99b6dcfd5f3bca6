import pytest
import yaml

from kftrainer.cli.main import main


def test_the_command_prints_every_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["spec"]["names"]["kind"] for each in printed] == [
        "ClusterTrainingRuntime",
        "TrainingRuntime",
        "TrainJob",
    ]
