import json
from importlib.resources import files

import pytest

TABLE = json.loads((files("kftrainer.kube.objects") / "pod_template_merge_keys.json").read_bytes())


@pytest.mark.parametrize(
    ("kind", "field", "entry"),
    [
        ("PodTemplateSpec", "spec", {"type": "PodSpec"}),
        ("PodSpec", "containers", {"list": True, "mergeKey": "name", "type": "Container"}),
        ("PodSpec", "hostAliases", {"list": True, "mergeKey": "ip"}),
        ("PodSpec", "imagePullSecrets", {"list": True, "mergeKey": "name"}),
        ("PodSpec", "schedulingGates", {"list": True, "mergeKey": "name"}),
        ("Container", "env", {"list": True, "mergeKey": "name"}),
        ("Container", "volumeMounts", {"list": True, "mergeKey": "mountPath"}),
        ("Container", "ports", {"list": True, "mergeKey": "containerPort"}),
        ("ObjectMeta", "finalizers", {"list": True}),
    ],
)
def test_lists_that_a_patch_merges(kind: str, field: str, entry: dict[str, object]) -> None:
    assert TABLE[kind][field] == entry


def test_a_volume_changes_its_source_as_a_whole() -> None:
    assert TABLE["PodSpec"]["volumes"]["retainKeys"] is True


@pytest.mark.parametrize(
    ("kind", "field"),
    [("PodSpec", "tolerations"), ("PodSpec", "nodeSelector"), ("Container", "args")],
)
def test_default_merge_strategies_are_not_in_the_table(kind: str, field: str) -> None:
    assert field not in TABLE[kind]
