"""`make demo` before it has a cluster: which training it runs, and with what."""

import re
from pathlib import Path

import demo
import pytest

from environments import mpi, virtual
from kftrainer.devcluster.progress import SILENT


async def test_pods_are_simulated_if_process_nodes_are_unavailable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "unavailable", lambda: "No user namespaces.")
    assert await demo.chosen(SILENT) == demo.SIMULATED
    printed = capsys.readouterr().err
    assert printed == "demo: No user namespaces. The pods are simulated and train nothing.\n"


async def test_pods_run_in_the_environment_of_mpi_if_process_nodes_are_available(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "unavailable", lambda: None)
    folder = mpi.environment_folder(mpi.DEMO)
    folder.mkdir(parents=True)
    (folder / virtual.READY).touch()
    training = await demo.chosen(SILENT)
    [(image, used)] = training.shape.images.items()
    *_, runtime = training.runtimes
    images = set(re.findall(r"image: (.+)", (demo.ROOT / runtime).read_text()))
    assert (images, used) == ({image}, folder)


def test_kwok_is_built_only_to_simulate_pods() -> None:
    shapes = {"real": demo.REAL.shape, "simulated": demo.SIMULATED.shape}
    needed = {
        name: {each.name for each in (*shape.binaries(), *shape.manifests())}
        for name, shape in shapes.items()
    }
    assert needed["simulated"] - needed["real"] == {"kwok"}
    assert needed["real"] < needed["simulated"]
