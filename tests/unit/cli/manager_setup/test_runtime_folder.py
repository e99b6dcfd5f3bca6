"""The folder of runtimes, read strictly."""

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from kftrainer.cli.manager_setup.runtime_folder import RuntimeFolderError, runtimes_in
from tests.support.objects import Object, runtime, train_job
from tests.support.runtimes import SHIPPED

CLUSTER = "ClusterTrainingRuntime"
TORCH = runtime("torch", CLUSTER)


def written(folder: Path, files: Mapping[str, Object | str]) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        (folder / name).write_text(text)
    return folder


def problem_of(folder: Path) -> str:
    with pytest.raises(RuntimeFolderError) as raised:
        runtimes_in(folder)
    return str(raised.value).replace(str(folder), "F")


def test_empty_folder_is_an_error_unless_marked_as_intended(tmp_path: Path) -> None:
    none = (
        "runtimes cannot be used: F contains no .yaml file; to delete all runtimes that were "
        "applied from it earlier, add an empty file named none"
    )
    assert problem_of(tmp_path) == none
    (tmp_path / "none").mkdir()
    assert problem_of(written(tmp_path, {"README.md": "words"})) == none
    (tmp_path / "none").rmdir()
    assert runtimes_in(written(tmp_path, {"none": ""})) == []
    assert problem_of(written(tmp_path, {"torch.yaml": TORCH})) == (
        "runtimes cannot be used: F/none: this file declares an empty folder, but torch.yaml exists"
    )


def test_each_file_is_a_runtime(tmp_path: Path) -> None:
    files = {f"{each['metadata']['name']}.yaml": each for each in SHIPPED}
    found = runtimes_in(written(tmp_path, files))
    assert found == [files[name] for name in sorted(files)]


def test_a_config_map_that_is_mounted_is_read_once(tmp_path: Path) -> None:
    """The kubelet writes a hidden folder, a hidden link to it, and links through that."""
    data = tmp_path / "..2026_11_16_14_00_00.1"
    data.mkdir()
    written(data, {"torch.yaml": TORCH})
    (tmp_path / "..data").symlink_to(data.name)
    (tmp_path / "torch.yaml").symlink_to("..data/torch.yaml")
    assert runtimes_in(tmp_path) == [TORCH]


def test_other_files_and_folders_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    written(tmp_path, {"README.md": "words", ".hidden.yaml": "words", "torch.yaml": TORCH})
    assert runtimes_in(tmp_path) == [TORCH]


HEAD = f"F/a.yaml:1: must be a {CLUSTER} of trainer.kubeflow.org/v1alpha1, not"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "F/a.yaml: must contain one object, but contains 0"),
        (yaml.safe_dump_all([TORCH, TORCH]), "F/a.yaml: must contain one object, but contains 2"),
        ("a: [", "F/a.yaml:2: not valid YAML"),
        ("a: 1\na: 2\n", "F/a.yaml:2: "),
        ("just words", "F/a.yaml:1: not an object"),
        ({"spec": {}}, f"{HEAD} an object without a kind"),
        ({"kind": "Pod"}, f"{HEAD} a Pod"),
        (runtime("torch"), f"{HEAD} a TrainingRuntime of trainer.kubeflow.org/v1alpha1"),
        ({**TORCH, "apiVersion": "v1"}, f"{HEAD} a {CLUSTER} of v1"),
        (train_job(), f"{HEAD} a TrainJob of"),
        ({**TORCH, "metadata": {}}, "F/a.yaml:1: metadata.name: Required value"),
        (
            {**TORCH, "metadata": {"name": "torch", "namespace": "a"}},
            "F/a.yaml:1: metadata.namespace: must not be set here",
        ),
        (
            {**TORCH, "metadata": {"generateName": "torch-"}},
            "F/a.yaml:1: metadata.generateName: must not be set here",
        ),
        ({**TORCH, "metadata": {"name": "No Name"}}, "F/a.yaml:1: metadata.name: Invalid value"),
        ({**TORCH, "metadata": "torch"}, "F/a.yaml:1: metadata: "),
        ({**TORCH, "status": {}}, "F/a.yaml:1: status: must not be set here"),
        ({**TORCH, "sepc": {}}, "F/a.yaml:1: sepc: Unknown field"),
        (
            runtime("torch", CLUSTER, mlPolicy={"numNodes": "2"}),
            "F/a.yaml:1: spec.mlPolicy.numNodes: Invalid value",
        ),
    ],
)
def test_file_of_another_type_is_reported_by_name(
    tmp_path: Path, content: Object | str, message: str
) -> None:
    text = problem_of(written(tmp_path, {"a.yaml": content}))
    assert text.startswith("runtimes cannot be used: F/a.yaml")
    assert message in text


def test_a_file_with_another_ending_is_not_passed_over(tmp_path: Path) -> None:
    message = problem_of(written(tmp_path, {"torch.yml": TORCH}))
    assert message == "runtimes cannot be used: F/torch.yml: the file name must end in .yaml"


def test_two_of_one_name_are_one_too_many(tmp_path: Path) -> None:
    message = problem_of(written(tmp_path, {"a.yaml": TORCH, "b.yaml": TORCH}))
    assert message == "runtimes cannot be used: F/b.yaml: duplicate runtime torch: also in F/a.yaml"


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    message = problem_of(written(tmp_path, {"a.yaml": "", "b.yaml": TORCH, "c.yaml": "1"}))
    assert message == (
        "runtimes cannot be used: F/a.yaml: must contain one object, but contains 0; "
        "F/c.yaml:1: not an object: expected a mapping with apiVersion and kind"
    )


def test_inaccessible_entry_is_an_error_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a volume that is being taken away."""

    def stale(_: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    written(tmp_path, {"torch.yaml": TORCH})
    monkeypatch.setattr(Path, "is_dir", stale)
    assert problem_of(tmp_path) == "failed to read runtimes: F: Stale file handle"


def test_a_file_or_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.yaml").symlink_to("gone.yaml")
    assert problem_of(tmp_path) == (
        "runtimes cannot be used: F/torch.yaml: no such file or directory"
    )
    with pytest.raises(RuntimeFolderError, match=r"none: No such file or directory$"):
        runtimes_in(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeFolderError, match=r"file: Not a directory$"):
        runtimes_in(tmp_path / "file")
