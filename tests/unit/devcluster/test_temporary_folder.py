from pathlib import Path

import pytest

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.temporary_folder import own_folder, sweep


def test_folder_is_deleted_after_its_block(tmp_path: Path) -> None:
    with own_folder(tmp_path) as folder:
        (folder / "etcd").mkdir()
    assert list(cache_paths.runs(tmp_path).iterdir()) == []


def test_a_folder_in_use_is_not_swept(tmp_path: Path) -> None:
    with own_folder(tmp_path) as folder:
        sweep(folder.parent)
        assert folder.exists()


def test_after_an_error_the_folder_stays_until_the_next_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), own_folder(tmp_path) as failed:
        raise RuntimeError
    assert failed.exists()
    with own_folder(tmp_path) as folder:
        assert not failed.exists()
        assert folder.exists()
