from typing import Any

import pytest

from kftrainer.runtime.resources.devices import (
    accelerators,
    cpus,
    is_accelerator,
    without_accelerators,
)

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/pgpu",
        "amd.com/gpu",
        "amd.com/GPU",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "gpu.intel.com/XE",
        "habana.ai/gaudi",
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
        "aws.amazon.com/neurondevice",
        "google.com/tpu",
        "huawei.com/Ascend910",
        "huawei.com/Ascend910B4-1",
        "huawei.com/Ascend310P-2c.1cpu",
        "huawei.com/npu",
        "cambricon.com/mlu",
        "cambricon.com/mlu370",
        "cambricon.com/vmlu",
        "hygon.com/dcu",
        "hygon.com/dcunum",
        "enflame.com/gcu",
        "kunlunxin.com/xpu",
        "iluvatar.com/gpu",
        "iluvatar.ai/BI-V150-vgpu",
        "iluvatar.ai/vgpu",
        "mthreads.com/gpu",
        "mthreads.com/vgpu",
        "metax-tech.com/gpu",
        "metax-tech.com/sgpu",
        "birentech.com/gpu",
        "furiosa.ai/rngd",
        "c600.graphcore.ai/ipu",
        "qualcomm.com/qaic",
        "tenstorrent.com/n300",
        "volcano.sh/vgpu-number",
    ],
)
def test_devices_of_all_vendors_are_accelerators(resource: str) -> None:
    """D26."""
    assert is_accelerator(resource)


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/mig-7g.141gb",
        "nvidia.com/mig-1g.10gb.me",
        "nvidia.com/mig-1g.24gb-me",
        "nvidia.com/mig-1g.24gb.me.all",
        "nvidia.com/mig-1c.3g.20gb",
        "nvidia.com/mig-3g.20gb.shared",
        "amd.com/cpx_nps4",
        "amd.com/spx_nps1",
        "birentech.com/1-4-gpu",
        "cambricon.com/mlu370.share",
        "cambricon.com/mlu370.mim-2m.8gb",
        "hygon.com/dcu-mig-2g-15gb",
        "hygon.com/dcu-share-36c-16g",
    ],
)
def test_slices_of_a_device_are_accelerators(resource: str) -> None:
    """D26."""
    assert is_accelerator(resource)


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/gpu.memory",
        "nvidia.com/mig.config",
        "nvidia.com/mig-1g.5gb2",
        "amd.com/gpumem",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-core.percentage",
        "gpu.intel.com/i915_monitoring",
        "gpu.intel.com/xe_monitoring",
        "gpu.intel.com/memory.max",
        "gpu.intel.com/millicores",
        "gpu.intel.com/tiles",
        "volcano.sh/gpu-memory",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-cores",
        "koordinator.sh/gpu-core",
        "huawei.com/Ascend910B4-memory",
        "huawei.com/Ascend910B4-core",
        "huawei.com/npu-core",
        "cambricon.com/mlu.smlu.vmemory",
        "cambricon.com/mlu370.smlu.vcore",
        "hygon.com/dcumem",
        "hygon.com/dcucores",
        "iluvatar.ai/BI-V150.vMem",
        "iluvatar.ai/BI-V150.vCore",
        "metax-tech.com/vmemory",
        "mthreads.com/sgpu-core",
        "kunlunxin.com/vxpu-memory",
        "enflame.com/gcu-memory",
        "example.com/gpu-license",
        "example.com/nogpu",
        "rdma/hca_gpu",
        "vpc.amazonaws.com/efa",
        "cpu",
        "memory",
        "hugepages-2Mi",
        "gpu",
    ],
)
def test_resources_that_accompany_devices_are_not_accelerators(resource: str) -> None:
    """D26."""
    assert not is_accelerator(resource)


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ({}, 0),
        ({"limits": None, "requests": None}, 0),
        ({"limits": {GPU: "4"}}, 4),
        ({"requests": {GPU: 4}}, 4),
        ({"limits": {GPU: "8"}, "requests": {GPU: "4"}}, 4),
        ({"limits": {GPU: "8"}, "requests": {GPU: "0"}}, 8),
        ({"limits": {GPU: "0"}}, 0),
        ({"limits": {GPU: "2k"}}, 2000),
        ({"limits": {"cpu": "16", "nvidia.com/gpumem": "3000"}}, 0),
    ],
)
def test_request_or_else_limit_is_counted(resources: dict[str, Any], count: int) -> None:
    assert accelerators(resources) == count


def test_accompanying_resources_do_not_hide_devices() -> None:
    """D26."""
    assert accelerators({"limits": {"nvidia.com/gpumem": "3000", GPU: "2"}}) == 2


def test_devices_of_several_kinds_are_added() -> None:
    """D26."""
    slices = {"nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-2g.10gb": "2"}
    assert accelerators({"limits": slices, "requests": {"nvidia.com/mig-1g.5gb": "1"}}) == 3


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ({}, 0),
        ({"requests": {"cpu": "500m"}}, 1),
        ({"requests": {"cpu": "2500m"}}, 3),
        ({"requests": {"cpu": 4}}, 4),
        ({"limits": {"cpu": "3"}}, 3),
        ({"requests": {"cpu": "0"}, "limits": {"cpu": "5"}}, 5),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "8"}}, 2),
    ],
)
def test_cpus_are_rounded_up(resources: dict[str, Any], count: int) -> None:
    assert cpus(resources) == count


def test_without_accelerators_keeps_other_resources() -> None:
    resources = {
        "limits": {"cpu": "4", GPU: "8", "amd.com/cpx_nps4": "1"},
        "requests": {"memory": "1Gi", GPU: "8"},
        "claims": [{"name": "network"}],
    }
    assert without_accelerators(resources) == {
        "limits": {"cpu": "4"},
        "requests": {"memory": "1Gi"},
        "claims": [{"name": "network"}],
    }
    assert GPU in resources["limits"]
