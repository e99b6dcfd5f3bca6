"""Counts the accelerators and CPUs of a container, for the number of processes per node."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kftrainer.kube.objects.quantity import Quantity

# Names that device plugins register. Not every name with "gpu" is a device: nvidia.com/gpumem is a
# share of one, and gpu.intel.com/i915_monitoring is for monitoring only.
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


@lru_cache(maxsize=256)  # clusters have few kinds of resources
def is_accelerator(resource: str) -> bool:
    """Whether the resource is an accelerator or a partition of one."""
    return resource.lower() in _DEVICES or _PATTERNS.fullmatch(resource) is not None


def accelerators(resources: Mapping[str, Any]) -> int:
    """Return the number of accelerators, of all kinds, in a container's resources."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return sum(
        _amount(name, requests, limits) for name in {**limits, **requests} if is_accelerator(name)
    )


def cpus(resources: Mapping[str, Any]) -> int:
    """Return the number of CPUs in a container's resources, rounded up; 0 if not set."""
    return _amount("cpu", resources.get("requests") or {}, resources.get("limits") or {})


def without_accelerators(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources without accelerators."""
    return {
        kind: {name: amount for name, amount in amounts.items() if not is_accelerator(name)}
        if kind in ("limits", "requests")
        else amounts
        for kind, amounts in resources.items()
    }


def _amount(name: str, requests: Mapping[str, Any], limits: Mapping[str, Any]) -> int:
    """Return the request, or else the limit, rounded up."""
    for amounts in (requests, limits):
        if name in amounts and (amount := Quantity.parse(amounts[name]).ceil()):
            return amount
    return 0
