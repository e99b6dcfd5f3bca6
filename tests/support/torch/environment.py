"""Virtual environment with torch, which takes the place of the image of a runtime.

For Linux, PyPI has only wheels with CUDA, which load its libraries also on machines without GPUs.
`torch.lock` has the libraries that the import needs and leaves out the other dependencies, so pip
must not resolve any. It was created with

    uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

from `torch` and `numpy`, with `--no-emit-package` for triton, cuda-bindings, cuda-pathfinder,
nvidia-cusolver, nvidia-nvtx, nvidia-cuda-cccl and setuptools.
"""

from pathlib import Path

from environments.virtual import folder_of, install, provide
from kftrainer.devcluster.progress import SILENT, Progress

LOCK = Path(__file__).with_name("torch.lock")


def environment_folder() -> Path:
    """Return the folder of the environment, which may not exist yet."""
    return folder_of("torch", LOCK.read_bytes())


async def torch_environment(progress: Progress = SILENT) -> Path:
    """Return the folder of the environment; it is created once in the cache folder."""
    return await provide(environment_folder(), "torch (2.5 GB)", _create, progress)


async def _create(folder: Path) -> None:
    await install(folder, [LOCK], "--no-deps")
