"""The runtimes: valid, equal to those of Kubeflow Trainer, and configurable by values."""

import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kftrainer.cli.manager_setup.runtime_folder import runtimes_in
from tests.integration.chart.conftest import Rendering
from tests.integration.chart.value_sets import CELLS
from tests.support.client_shapes import undecodable
from tests.support.helm import Object, Values, named, of_kind
from tests.support.managers import KFTRAINER
from tests.support.runtimes import SHIPPED

ALL: Values = {"runtimes": {"torchDistributedWithCache": {"enabled": True}}}
DEFAULT = {
    "torch-distributed",
    "deepspeed-distributed",
    "mlx-distributed",
    "torchtune-llama3.2-1b",
    "torchtune-llama3.2-3b",
    "torchtune-qwen2.5-1.5b",
    "plain",
}
WITH_CACHE = "torch-distributed-with-cache"


def files_in(objects: list[Object]) -> dict[str, str]:
    files: dict[str, str] = named(objects, "ConfigMap", "kubeflow-trainer-runtimes").get("data", {})
    return files


def runtimes_of(objects: list[Object]) -> dict[str, Object]:
    found = {name: yaml.safe_load(text) for name, text in files_in(objects).items()}
    assert [f"{each['metadata']['name']}.yaml" for each in found.values()] == list(found)
    return {each["metadata"]["name"]: each for each in found.values()}


def containers_of(runtime: Object) -> Iterator[Object]:
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        yield from job["template"]["spec"]["template"]["spec"]["containers"]


def node_of(runtime: Object) -> Object:
    return list(containers_of(runtime))[-1]


def unpinned(runtime: Object) -> Any:
    """The runtime's spec with the images that both sides specify."""
    spec = copy.deepcopy(runtime["spec"])
    for container in containers_of({"spec": spec}):
        image = container["image"].removeprefix("docker.io/").removesuffix(":v2.1.0")
        container.pop("terminationMessagePolicy", None)
        container["image"] = "" if runtime["metadata"]["name"] == WITH_CACHE else image
        for variable in container.get("env", ()):
            variable["value"] = variable.get("value", "").removesuffix(":v2.1.0")
    return spec


def test_which_there_are(rendered: Rendering) -> None:
    assert set(runtimes_of(rendered())) == DEFAULT
    assert set(runtimes_of(rendered(ALL))) == {*DEFAULT, WITH_CACHE}


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda each: each["metadata"]["name"])
def test_runtimes_match_those_of_kubeflow_trainer(rendered: Rendering, shipped: Object) -> None:
    found = runtimes_of(rendered(ALL))[shipped["metadata"]["name"]]
    assert unpinned(found) == unpinned(shipped)
    assert found["metadata"] == shipped["metadata"]


def test_the_plain_one_runs_anything(rendered: Rendering) -> None:
    plain = runtimes_of(rendered())["plain"]
    assert plain["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "plain"}
    assert plain["spec"]["mlPolicy"] == {"numNodes": 1}
    assert list(node_of(plain)) == ["name", "image", "terminationMessagePolicy"]


def test_containers_report_their_last_output_when_they_fail(rendered: Rendering) -> None:
    for runtime in runtimes_of(rendered(ALL)).values():
        policies = {each["terminationMessagePolicy"] for each in containers_of(runtime)}
        assert policies == {"FallbackToLogsOnError"}


def test_clients_of_all_releases_can_decode_them(rendered: Rendering) -> None:
    found = runtimes_of(rendered(ALL))
    assert {name: undecodable(each) for name, each in found.items()} == {name: [] for name in found}


@pytest.mark.parametrize("values", [ALL, CELLS["mirror"]], ids=["all", "mirror"])
def test_they_are_valid(rendered: Rendering, values: Values, tmp_path: Path) -> None:
    files = files_in(rendered(values))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [*KFTRAINER, "validate", "-f", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(runtimes_in(tmp_path)) == len(files)  # as the manager reads them


SWITCHES = {
    "plain": "plain",
    "torchDistributed": "torch-distributed",
    "deepspeedDistributed": "deepspeed-distributed",
    "mlxDistributed": "mlx-distributed",
    "torchtune.llama1b": "torchtune-llama3.2-1b",
    "torchtune.llama3b": "torchtune-llama3.2-3b",
    "torchtune.qwen1b5": "torchtune-qwen2.5-1.5b",
}


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


@pytest.mark.parametrize(("switch", "name"), SWITCHES.items(), ids=SWITCHES.values())
def test_each_runtime_can_be_disabled(rendered: Rendering, switch: str, name: str) -> None:
    objects = rendered({"runtimes": nested(switch, {"enabled": False})})
    assert set(runtimes_of(objects)) == DEFAULT - {name}
    [pod] = of_kind(objects, "Pod")
    assert f"--runtime={name}" not in pod["spec"]["containers"][0]["args"]


def test_empty_set_of_runtimes_is_explicit_so_that_old_ones_are_deleted(
    rendered: Rendering, tmp_path: Path
) -> None:
    off = [{"runtimes": nested(switch, {"enabled": False})} for switch in SWITCHES]
    objects = rendered(*off)
    assert files_in(objects) == {"none": ""}
    (tmp_path / "none").write_text("")
    assert runtimes_in(tmp_path) == []  # as the manager reads it
    [container] = named(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--runtimes=/etc/kftrainer/runtimes" in container["args"]


def test_runtime_management_can_be_disabled(rendered: Rendering) -> None:
    objects = rendered({"runtimes": {"enabled": False}})
    names = {each["metadata"]["name"] for each in of_kind(objects, "ConfigMap")}
    assert "kubeflow-trainer-runtimes" not in names
    [container] = named(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert not [each for each in container["args"] if each.startswith("--runtimes")]
    [pod] = of_kind(objects, "Pod")
    assert not [each for each in pod["spec"]["containers"][0]["args"] if "--runtime=" in each]


def test_resources_and_volumes_follow_the_values(rendered: Rendering) -> None:
    requested = {"limits": {"nvidia.com/gpu": "4"}, "requests": {"memory": "1Gi"}}
    values = {
        **{
            name: {"resources": requested}
            for name in ("plain", "torchDistributed", "deepspeedDistributed", "mlxDistributed")
        },
        "torchDistributedWithCache": {"enabled": True, "resources": requested},
        "torchtune": {
            "resources": requested,
            "storage": {"size": "1Ti", "className": "fast", "accessModes": ["ReadWriteMany"]},
        },
    }
    found = runtimes_of(rendered({"runtimes": values}))
    for runtime in found.values():
        assert node_of(runtime)["resources"] == requested
        if "mpi" in runtime["spec"]["mlPolicy"]:
            assert all(each["resources"] == requested for each in containers_of(runtime))
    template = found["torchtune-llama3.2-1b"]["spec"]["template"]["spec"]
    [claim] = template["volumeClaimPolicies"][0]["templates"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Ti"}},
    }


def test_quantities_are_rendered_as_strings(rendered: Rendering) -> None:
    node = node_of(runtimes_of(rendered())["torchtune-llama3.2-1b"])
    assert node["resources"] == {"limits": {"nvidia.com/gpu": "2"}}


def test_labels_annotations_and_pulling(rendered: Rendering) -> None:
    values = {
        "labels": {"team": "ml", "trainer.kubeflow.org/framework": "mine"},
        "annotations": {"note": "ours"},
        "imagePullSecrets": ["a", {"name": "b"}],
        "imagePullPolicy": "Always",
        "torchDistributedWithCache": {"enabled": True},
    }
    for runtime in runtimes_of(rendered({"runtimes": values})).values():
        metadata = runtime["metadata"]
        assert metadata["labels"]["team"] == "ml"
        assert metadata["labels"]["trainer.kubeflow.org/framework"] != "mine"
        assert metadata["annotations"] == {"note": "ours"}
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            pod = job["template"]["spec"]["template"]["spec"]
            assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
        assert all(each["imagePullPolicy"] == "Always" for each in containers_of(runtime))


def test_the_cache_has_a_role_that_can_be_bound(rendered: Rendering) -> None:
    name = "kubeflow-trainer-cache-initializer"
    assert named(rendered(ALL), "ClusterRole", name)
    assert name not in {each["metadata"]["name"] for each in of_kind(rendered(), "ClusterRole")}
