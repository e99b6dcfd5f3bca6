from typing import Any

import pytest

from kftrainer.runtime.errors import InvalidTrainJobError
from kftrainer.runtime.patches.merge import MOST_BYTES, MOST_WORK
from kftrainer.runtime.patches.targets import MOST_UNKNOWN
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import findings, info_of, job_on

INITIALIZER = "dataset-initializer"


def two_jobs() -> Object:
    jobs = [replicated_job(INITIALIZER, INITIALIZER), replicated_job("node")]
    return runtime(jobs=jobs, mlPolicy={"numNodes": 1})


def overridden(*overrides: Object, dialect: str = "podTemplateOverrides") -> dict[str, Any]:
    document = two_jobs()
    info = info_of(job_on(document, **{dialect: list(overrides)}), document)
    return {each.name: each.pod for each in info.pod_sets}


def override(*targets: str, metadata: Object | None = None, **spec: Any) -> Object:
    entry = {"targetJobs": [{"name": target} for target in targets], "spec": spec}
    return entry if metadata is None else entry | {"metadata": metadata}


def refused(*overrides: Object, dialect: str = "podTemplateOverrides") -> list[str]:
    with pytest.raises(InvalidTrainJobError) as raised:
        overridden(*overrides, dialect=dialect)
    return [str(error) for error in raised.value.errors]


def test_override_changes_its_target_jobs() -> None:
    pods = overridden(override("node", serviceAccountName="me"))
    assert pods["node"]["spec"]["serviceAccountName"] == "me"
    assert "serviceAccountName" not in pods[INITIALIZER]["spec"]


def test_later_override_is_merged_into_the_result_of_earlier_ones() -> None:
    pods = overridden(
        override("node", imagePullSecrets=[{"name": "a"}], serviceAccountName="first"),
        override("node", imagePullSecrets=[{"name": "b"}], serviceAccountName="second"),
    )
    assert pods["node"]["spec"]["imagePullSecrets"] == [{"name": "b"}, {"name": "a"}]
    assert pods["node"]["spec"]["serviceAccountName"] == "second"


def test_labels_and_annotations_of_pods_are_merged() -> None:
    metadata = {"labels": {"a": "1"}, "annotations": {"b": "2"}}
    assert overridden(override("node", metadata=metadata))["node"]["metadata"] == metadata


def test_legacy_overrides_have_the_same_effect() -> None:
    legacy = {"targetJobs": [{"name": "node"}], "serviceAccountName": "me"}
    pods = overridden(legacy, dialect="podSpecOverrides")
    assert pods["node"]["spec"]["serviceAccountName"] == "me"


def test_empty_fields_have_no_effect() -> None:
    first = override("node", nodeSelector={"a": "1"}, tolerations=[{"key": "a"}])
    pods = overridden(first, override("node", nodeSelector={}, tolerations=[]))
    assert pods["node"]["spec"]["nodeSelector"] == {"a": "1"}
    assert pods["node"]["spec"]["tolerations"] == [{"key": "a"}]


def test_override_of_an_unknown_job_is_rejected() -> None:
    assert refused(override("node"), override("node", "worker")) == [
        'spec.podTemplateOverrides[1].targetJobs[1].name: Invalid value: "worker": '
        "must not have targetJob that doesn't exist in the runtime job template"
    ]


def test_override_of_an_unknown_container_is_rejected() -> None:
    """D20."""
    containers = [{"name": "node"}, {"name": "nod", "env": []}]
    assert refused(override("node", containers=containers)) == [
        'spec.podTemplateOverrides[0].spec.containers[1].name: Invalid value: "nod": '
        "must not have container that doesn't exist in the runtime job node"
    ]
    assert refused(override("node", initContainers=[{"name": "node"}])) == [
        'spec.podTemplateOverrides[0].spec.initContainers[0].name: Invalid value: "node": '
        "must not have initContainer that doesn't exist in the runtime job node"
    ]


def test_unknown_container_is_reported_once_per_job() -> None:
    twice = override("gone", "node", "gone", "node", containers=[{"name": "a"}, {"name": "a"}])
    assert [each.split(": ")[0] for each in refused(twice)] == [
        "spec.podTemplateOverrides[0].targetJobs[0].name",
        "spec.podTemplateOverrides[0].spec.containers[0].name",
    ]
    both = override("node", INITIALIZER, containers=[{"name": "a"}])
    assert [each.split("job ")[1] for each in refused(both)] == ["node", INITIALIZER]


def test_number_of_reported_unknown_targets_is_limited() -> None:
    containers = [{"name": f"c{index}"} for index in range(2000)]
    assert len(refused(override(*["node"] * 100, containers=containers))) == MOST_UNKNOWN


def test_overrides_that_take_long_to_merge_are_rejected() -> None:
    def large(count: int, size: int) -> list[Object]:
        text = "x" * (size // 2)
        return [
            override("node", metadata={"annotations": {f"a{index}": text}}, affinity={"a": text})
            for index in range(count)
        ]

    few = large(2, 100_000)
    assert "affinity" in overridden(*few)["node"]["spec"]
    (error,) = refused(*(each for each in large(6, MOST_BYTES // 5)))
    assert error.startswith("spec.podTemplateOverrides: Forbidden: must be fewer or smaller")
    (error,) = refused(
        {"targetJobs": [{"name": "node"}], "nodeSelector": {"a": "x" * MOST_BYTES}},
        dialect="podSpecOverrides",
    )
    assert error.startswith("spec.podSpecOverrides: Forbidden: must be fewer or smaller")


def test_overrides_of_long_lists_are_rejected_if_merging_takes_long() -> None:
    def volumes(count: int) -> list[Object]:
        return [
            override("node", volumes=[{"name": f"v{index}-{n}"} for n in range(10)])
            for index in range(count)
        ]

    assert len(overridden(*volumes(20))["node"]["spec"]["volumes"]) == 200
    # The volumes of earlier overrides are counted again for each later one.
    (error,) = refused(*volumes(MOST_WORK // 100))
    assert error.startswith("spec.podTemplateOverrides: Forbidden: must be fewer or smaller")


def test_unknown_job_does_not_hide_merge_errors() -> None:
    found = refused(override("gone"), override("node", volumes=[{"emptyDir": {}}]))
    assert [each.split(": ")[0] for each in found] == [
        "spec.podTemplateOverrides[0].targetJobs[0].name",
        "spec.podTemplateOverrides[1].spec.volumes[0]",
    ]


def test_error_paths_of_legacy_overrides_are_those_of_the_trainjob() -> None:
    legacy = {"targetJobs": [{"name": "node"}], "containers": [{"name": "nod"}]}
    assert [each.split(": ")[0] for each in refused(legacy, dialect="podSpecOverrides")] == [
        "spec.podSpecOverrides[0].containers[0].name"
    ]


def test_item_without_its_merge_key_is_rejected_with_its_path() -> None:
    found = refused(override("node", volumes=[{"emptyDir": {}}]))
    assert [each.split(": ")[0] for each in found] == [
        "spec.podTemplateOverrides[0].spec.volumes[0]"
    ]


def test_volume_of_another_type_replaces_the_source() -> None:
    """D27."""
    pods = overridden(
        override("node", volumes=[{"name": "data", "emptyDir": {}}]),
        override(
            "node", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}]
        ),
    )
    assert pods["node"]["spec"]["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}
    ]


def test_variable_override_replaces_the_source() -> None:
    """D27."""
    container = {"name": "node", "env": [{"name": "A", "value": "1"}]}
    reference = {"fieldRef": {"fieldPath": "metadata.name"}}
    other = {"name": "node", "env": [{"name": "A", "valueFrom": reference}]}
    pods = overridden(
        override("node", containers=[container]), override("node", containers=[other])
    )
    assert pods["node"]["spec"]["containers"][0]["env"] == [{"name": "A", "valueFrom": reference}]


def test_variables_of_step_containers_are_rejected() -> None:
    document = two_jobs()
    container = {"name": "node", "env": [{"name": "A", "value": "1"}]}
    job = job_on(document, podTemplateOverrides=[override("node", containers=[container])])
    assert [str(error) for error in findings(job, document).errors] == [
        'spec.podTemplateOverrides[0].spec.containers[0].env: Invalid value: ["A"]: '
        "must not have envs for the dataset-initializer, model-initializer, node containers"
    ]


def test_invalid_quantity_of_an_override_is_reported_with_its_path() -> None:
    volume = {"name": "shm", "emptyDir": {"sizeLimit": "1GB0"}}
    found = refused(override("node"), override("node", volumes=[volume]))
    assert [each.split(": ")[0] for each in found] == [
        "spec.podTemplateOverrides[1].spec.volumes[0].emptyDir.sizeLimit"
    ]
    legacy = {"targetJobs": [{"name": "node"}], "volumes": [volume]}
    found = refused(legacy, dialect="podSpecOverrides")
    assert [each.split(": ")[0] for each in found] == [
        "spec.podSpecOverrides[0].volumes[0].emptyDir.sizeLimit"
    ]


def test_overrides_under_both_names_are_rejected() -> None:
    document = two_jobs()
    legacy = {"targetJobs": [{"name": "node"}], "serviceAccountName": "me"}
    both = {"podSpecOverrides": [legacy], "podTemplateOverrides": [override("node")]}
    with pytest.raises(InvalidTrainJobError, match="is the old name of podTemplateOverrides"):
        info_of(job_on(document, **both), document)
