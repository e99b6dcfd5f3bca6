"""How many processes a node has room for: its accelerators and CPUs."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kftrainer.kube.objects.quantity import Quantity

# Resource names are what device plugins register. A name that merely has "gpu" in it, such as
# nvidia.com/gpumem, is no device but a share of one; gpu.intel.com/i915_monitoring only watches.
_DEVICES = frozenset(
    {
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
        "aws.amazon.com/neurondevice",
        "c600.graphcore.ai/ipu",
        "enflame.com/gcu",
        "enflame.com/vgcu",
        "furiosa.ai/rngd",
        "google.com/tpu",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "kunlunxin.com/vxpu",
        "kunlunxin.com/xpu",
        "metax-tech.com/sgpu",
        "mthreads.com/vgpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/pgpu",
        "qualcomm.com/qaic",
        "tenstorrent.com/blackhole",
        "tenstorrent.com/n150",
        "tenstorrent.com/n300",
        "volcano.sh/gpu-number",
        "volcano.sh/vgpu-number",
    }
)
_PATTERNS = re.compile(
    r"[^/]+/gpu"  # any vendor's plain name
    r"|nvidia\.com/mig-(\d+c\.)?\d+g\.\d+gb([.-][a-z]+)*"  # a slice of a GPU: mig-1g.5gb
    r"|amd\.com/[a-z]px_nps\d"  # a partition of an Instinct: cpx_nps4
    r"|birentech\.com/\d-\d-gpu"  # 1-4-gpu
    r"|cambricon\.com/(vmlu|mlunum|mlu(\d[\w-]*)?(\.share|\.mim-\d+m\.\d+gb)?)"
    r"|huawei\.com/(npu|ascend\d[\w.-]*(?<!-memory)(?<!-core))"  # Ascend910, Ascend310P-2c.1cpu
    r"|hygon\.com/[dh]cu(num|-(share|mig)-[\w-]+)?"
    r"|iluvatar\.ai/([\w-]+-)?vgpu",
    re.IGNORECASE,
)


@lru_cache(maxsize=256)  # clusters have few kinds of resources, and each TrainJob asks for some
def is_accelerator(resource: str) -> bool:
    """Whether this is the name of a device that processes compute on, or of a part of one."""
    return resource.lower() in _DEVICES or _PATTERNS.fullmatch(resource) is not None


def accelerators(resources: Mapping[str, Any]) -> int:
    """How many devices a container with these resources gets, of all kinds together."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return sum(
        _amount(name, requests, limits) for name in {**limits, **requests} if is_accelerator(name)
    )


def cpus(resources: Mapping[str, Any]) -> int:
    """How many CPUs a container with these resources asks for, rounded up; 0 if it does not say."""
    return _amount("cpu", resources.get("requests") or {}, resources.get("limits") or {})


def without_accelerators(resources: Mapping[str, Any]) -> dict[str, Any]:
    """The same resources for a container that does not compute."""
    return {
        kind: {name: amount for name, amount in amounts.items() if not is_accelerator(name)}
        if kind in ("limits", "requests")
        else amounts
        for kind, amounts in resources.items()
    }


def _amount(name: str, requests: Mapping[str, Any], limits: Mapping[str, Any]) -> int:
    """What is asked for, or else the limit, as a whole number."""
    for amounts in (requests, limits):
        if name in amounts and (asked := Quantity.parse(amounts[name]).ceil()):
            return asked
    return 0
