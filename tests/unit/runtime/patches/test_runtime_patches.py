"""Runtime patches: how they are merged, in which order, and what is an error in them."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kftrainer.api import names
from kftrainer.api.limits import OBJECT_VALUES, exceeded, values_in
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidTrainJobError
from kftrainer.runtime.explain import Explanation
from kftrainer.runtime.patches.merge import MOST_BYTES
from tests.support.objects import Object, replicated_job, runtime
from tests.support.other_releases import KUEUE_ENTRY
from tests.support.plans import (
    RUNTIMES,
    container_of,
    findings,
    in_namespace,
    info_of,
    job_on,
    jobs_of,
    plan,
    pod_of,
)

INITIALIZER = "dataset-initializer"
JOBS = "trainingRuntimeSpec.template.spec.replicatedJobs"
POD = "template.spec.template.spec"
STEP_ENV = "must not have envs for the dataset-initializer, model-initializer, node containers"


def two_jobs() -> Object:
    node = replicated_job("node")
    node["template"]["spec"]["template"]["spec"]["initContainers"] = [
        {"name": "fetch", "image": "fetch"}
    ]
    document = runtime(jobs=[replicated_job(INITIALIZER, INITIALIZER), node], mlPolicy={})
    document["spec"]["template"]["metadata"] = {"labels": {"of": "runtime", "kept": "yes"}}
    return document


RUNTIME = two_jobs()


def job_patch(
    name: str = "node", *, pods: Object | None = None, of_job: Object | None = None, **spec: Any
) -> Object:
    """Changes to one replicated job."""
    template: Object = {"spec": {"template": {"spec": spec}}}
    if pods is not None:
        template["spec"]["template"]["metadata"] = pods
    return {"name": name, "template": template | ({"metadata": of_job} if of_job else {})}


def patch(*jobs: Object, manager: str = "acme.io/tuner", metadata: Object | None = None) -> Object:
    template: Object = {"spec": {"replicatedJobs": list(jobs)} if jobs else {}}
    if metadata is not None:
        template["metadata"] = metadata
    return {"manager": manager, "trainingRuntimeSpec": {"template": template}}


def planned(*patches: Object, **spec: Any) -> Any:
    return plan(job_on(RUNTIME, runtimePatches=list(patches), **spec), RUNTIME)["JobSet"]


def rejected(*patches: Object, **spec: Any) -> list[str]:
    """The errors of admission, which planning raises too if it finds them."""
    return [
        str(e) for e in findings(job_on(RUNTIME, runtimePatches=[*patches], **spec), RUNTIME).errors
    ]


def unplannable(*patches: Object, **spec: Any) -> list[str]:
    with pytest.raises(InvalidTrainJobError) as raised:
        planned(*patches, **spec)
    return [str(error) for error in raised.value.errors]


def test_patch_changes_only_the_jobs_that_it_names() -> None:
    before, after = (
        plan(job_on(RUNTIME), RUNTIME)["JobSet"],
        planned(patch(job_patch(hostname="a"))),
    )
    assert pod_of(after) == {**pod_of(before), "hostname": "a"}
    assert pod_of(after, INITIALIZER) == pod_of(before, INITIALIZER)


def test_order_of_jobs_is_that_of_the_runtime() -> None:
    jobs = (job_patch("node", serviceAccountName="a"), job_patch(INITIALIZER, hostname="b"))
    assert [*jobs_of(planned(patch(*jobs)))] == [INITIALIZER, "node"]


def test_later_patch_is_merged_into_the_result_of_earlier_ones() -> None:
    """Golden case N5: the order of the list counts, not managers or times."""
    one = patch(
        job_patch(
            tolerations=[{"key": "a"}], schedulingGates=[{"name": "a"}], nodeSelector={"a": "1"}
        ),
        manager="z.io/one",
    )
    two = patch(
        job_patch(
            tolerations=[{"key": "b"}], schedulingGates=[{"name": "b"}], nodeSelector={"a": "2"}
        ),
        manager="a.io/two",
    )
    two["time"] = "2020-01-01T00:00:00Z"
    for first, second, last in ((one, two, "b"), (two, one, "a")):
        pod = pod_of(planned(first, second))
        assert pod["tolerations"] == [{"key": last}]
        assert [each["name"] for each in pod["schedulingGates"]] == [
            last,
            "a" if last == "b" else "b",
        ]
        assert pod["nodeSelector"] == {"a": "2" if last == "b" else "1"}


def test_metadata_is_merged_key_by_key_at_each_level() -> None:
    one = {"labels": {"of": "one", "a": "1"}, "annotations": {"b": "1"}}
    two = {"labels": {"of": "two"}}
    job_set = planned(
        patch(job_patch(pods=one, of_job=one), metadata=one, manager="a.io/1"),
        patch(job_patch(pods=two, of_job=two), metadata=two, manager="a.io/2"),
    )
    merged = {"labels": {"of": "two", "a": "1"}, "annotations": {"b": "1"}}
    template = jobs_of(job_set)["node"]["template"]
    assert job_set["metadata"]["labels"] == {**merged["labels"], "kept": "yes"}
    assert job_set["metadata"]["annotations"] == merged["annotations"]
    assert template["spec"]["template"]["metadata"] == merged
    step = {names.LABEL_ANCESTOR_STEP: "trainer"}
    assert template["metadata"] == {**merged, "labels": {**step, **merged["labels"]}}


def test_precedence_is_runtime_then_spec_then_overrides_then_patches() -> None:
    job_set = planned(
        patch(job_patch(nodeSelector={"a": "patch"}), metadata={"labels": {"c": "patch"}}),
        labels={"of": "spec", "c": "spec"},
        podTemplateOverrides=[
            {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"a": "o", "b": "o"}}}
        ],
    )
    assert job_set["metadata"]["labels"] == {"of": "spec", "kept": "yes", "c": "patch"}
    assert pod_of(job_set)["nodeSelector"] == {"a": "patch", "b": "o"}


def test_every_field_of_release_2_4_reaches_the_pods() -> None:
    spec: Object = {
        "serviceAccountName": "me",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"fsGroup": 7},
        "imagePullSecrets": [{"name": "s"}],
        "affinity": {"nodeAffinity": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
        "initContainers": [
            {"name": "fetch", "image": "fetch", "env": [{"name": "A", "value": "1"}]}
        ],
    }
    container = {
        "name": "node",
        "securityContext": {"runAsUser": 1},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "resources": {"limits": {"cpu": "2"}, "claims": [{"name": "gpu"}]},
    }
    written = deepcopy(spec) | {"containers": [container]}
    written["volumes"][0]["emptyDir"]["sizeLimit"] = "1024Mi"
    del written["initContainers"][0]["image"]
    written["containers"][0] = container | {
        "resources": {"limits": {"cpu": "2000m"}, "claims": [{"name": "gpu"}]}
    }
    pod = pod_of(planned(patch(job_patch(**written))))
    assert {field: pod[field] for field in spec} == spec
    [node] = pod["containers"]
    assert {field: node[field] for field in container} == container


@pytest.mark.parametrize(
    "empty",
    [
        KUEUE_ENTRY,
        {"manager": "a.io/b"},
        {"manager": "a.io/b", "trainingRuntimeSpec": {}},
        {"manager": "a.io/b", "trainingRuntimeSpec": {"template": {}}},
        patch({"name": "node"}),
        patch({"name": "node", "template": {}}),
        patch(job_patch(nodeSelector={}, tolerations=[], serviceAccountName="", affinity={})),
    ],
    ids=range(7),
)
def test_patch_without_content_has_no_effect(empty: Object) -> None:
    assert planned(empty) == plan(job_on(RUNTIME), RUNTIME)["JobSet"]
    assert findings(job_on(RUNTIME, runtimePatches=[empty]), RUNTIME).errors == []


def test_other_metadata_of_stored_patches_is_ignored() -> None:
    named = {"name": "x", "namespace": "y", "finalizers": ["a/b"], "labels": {"a": "b"}}
    job_set = planned(patch(job_patch(pods=named, of_job=named), metadata=named))
    template = jobs_of(job_set)["node"]["template"]
    assert job_set["metadata"]["name"] == "demo"
    assert "finalizers" not in job_set["metadata"]
    assert [*template["metadata"]] == ["labels"]
    assert [*template["spec"]["template"]["metadata"]] == ["labels"]


def test_unknown_job_is_rejected_with_its_path() -> None:
    """D20."""
    wrong = (patch(job_patch()), patch(job_patch(), job_patch("worker"), manager="a.io/b"))
    errors = [
        f'spec.runtimePatches[1].{JOBS}[1].name: Invalid value: "worker": must not have '
        "replicated job that doesn't exist in the runtime job template"
    ]
    assert unplannable(*wrong) == rejected(*wrong) == errors


@pytest.mark.parametrize("field", ["container", "initContainer"])
def test_unknown_container_is_rejected_with_its_path(field: str) -> None:
    """D20."""
    wrong = patch(job_patch(INITIALIZER), job_patch(**{f"{field}s": [{"name": "nod"}]}))
    errors = [
        f'spec.runtimePatches[0].{JOBS}[1].{POD}.{field}s[0].name: Invalid value: "nod": must not '
        f"have {field} that doesn't exist in the runtime job node"
    ]
    assert unplannable(wrong) == rejected(wrong) == errors


def test_item_without_its_merge_key_is_rejected_with_its_path() -> None:
    assert [
        each.split(": ")[0] for each in unplannable(patch(job_patch(volumes=[{"emptyDir": {}}])))
    ] == [f"spec.runtimePatches[0].{JOBS}[0].{POD}.volumes[0]"]


def test_invalid_quantity_is_rejected_with_its_path() -> None:
    wrong = patch(job_patch(volumes=[{"name": "a", "emptyDir": {"sizeLimit": "-1"}}]))
    assert [each.split(": ")[0] for each in unplannable(wrong)] == [
        f"spec.runtimePatches[0].{JOBS}[0].{POD}.volumes[0].emptyDir.sizeLimit"
    ]


@pytest.mark.parametrize("step", [None, "trainer", INITIALIZER])
def test_step_of_a_job_cannot_be_changed(step: str | None) -> None:
    label = names.LABEL_ANCESTOR_STEP
    wrong = patch(job_patch(of_job={"labels": {label: step or "other"}}))
    if step == "trainer":
        assert jobs_of(planned(wrong))["node"]["template"]["metadata"]["labels"][label] == step
        return
    [error] = unplannable(wrong)
    assert error.startswith(
        f"spec.runtimePatches[0].{JOBS}[0].template.metadata.labels[{label}]: Invalid value: "
    )


@pytest.mark.parametrize("job", ["node", INITIALIZER])
def test_variables_of_step_containers_are_rejected(job: str) -> None:
    variable = {"name": "A", "value": "hunter2"}
    wrong = patch(job_patch(job, containers=[{"name": job, "env": [variable]}]))
    assert rejected(wrong) == [
        f"spec.runtimePatches[0].{JOBS}[0].{POD}.containers[0].env: "
        f'Invalid value: ["A"]: {STEP_ENV}'
    ]
    assert rejected(patch(job_patch(initContainers=[{"name": "fetch", "env": [variable]}]))) == []


@pytest.mark.parametrize(
    ("manager", "detail"),
    [
        ("tuner", '"tuner": must be a domain-prefixed path (such as "acme.io/foo")'),
        ("/tuner", '"/tuner": must be a domain-prefixed path (such as "acme.io/foo")'),
        ("acme.io/", '"acme.io/": must be a domain-prefixed path (such as "acme.io/foo")'),
        ("Acme.io/tuner", '"Acme.io": a lowercase RFC 1123 subdomain must consist of lower case'),
        ("acme.io/tüner", '"tüner": Invalid path (regex used for validation is \'[A-Za-z0-9/'),
    ],
)
def test_manager_has_a_domain(manager: str, detail: str) -> None:
    [error] = rejected(patch(job_patch(), manager="acme.io/a/b"), patch(manager=manager))
    assert error.startswith(f"spec.runtimePatches[1].manager: Invalid value: {detail}")


def test_both_parts_of_a_manager_are_reported() -> None:
    assert len(rejected(patch(manager="-/ "))) == 2


def test_manager_of_a_stored_trainjob_does_not_prevent_its_plan() -> None:
    assert pod_of(planned(patch(job_patch(hostname="a"), manager="one")))["hostname"] == "a"


@pytest.mark.parametrize("level", ["of_job", "pods", "metadata"])
def test_metadata_that_the_api_server_would_reject_is_rejected(level: str) -> None:
    bad = {"labels": {"a": "b c"}}
    wrong = patch(metadata=bad) if level == "metadata" else patch(job_patch(**{level: bad}))
    path = {
        "metadata": "trainingRuntimeSpec.template.metadata",
        "of_job": f"{JOBS}[0].template.metadata",
        "pods": f"{JOBS}[0].template.spec.template.metadata",
    }[level]
    [error] = rejected(wrong)
    assert error.startswith(f'spec.runtimePatches[0].{path}.labels.a: Invalid value: "b c"')


def test_errors_of_patches_do_not_hide_other_errors() -> None:
    errors = rejected(patch(job_patch("gone")), initializer={"model": {"storageUri": "hf://a"}})
    assert [each.split(": ")[0] for each in errors] == [
        f"spec.runtimePatches[0].{JOBS}[0].name",
        "spec.runtimeRef",
    ]


def test_patches_that_take_long_to_merge_are_rejected() -> None:
    text = "x" * (MOST_BYTES // 5)
    large = [patch(job_patch(affinity={"a": text}), manager=f"a.io/{n}") for n in range(6)]
    assert "affinity" in pod_of(planned(*large[:4]))
    [error] = unplannable(*large)
    assert error.startswith("spec.runtimePatches: Forbidden: must be fewer or smaller: together")


def test_work_of_overrides_and_patches_counts_together() -> None:
    def volumes(index: int) -> list[Object]:
        return [{"name": f"v{index}-{n}"} for n in range(20)]

    overrides = [
        {"targetJobs": [{"name": "node"}], "spec": {"volumes": volumes(index)}}
        for index in range(16)
    ]
    patches = [patch(job_patch(volumes=volumes(n)), manager=f"a.io/{n}") for n in range(16)]
    assert planned(*patches)
    assert planned(podTemplateOverrides=overrides)
    [error] = unplannable(*patches, podTemplateOverrides=overrides)
    assert error.startswith("spec.runtimePatches: Forbidden: must be fewer or smaller: merging")


def test_the_admission_of_the_largest_runtime_by_a_queue_is_not_too_much_work() -> None:
    document = runtime(jobs=[replicated_job(f"j{n}", None) for n in range(100)], mlPolicy={})
    pods = {"labels": {"kueue.x-k8s.io/podset": "x"}, "annotations": {"a": "b"}}
    jobs = [
        job_patch(f"j{n}", pods=pods, nodeSelector={"a": "b"}, tolerations=[{"key": "a"}])
        for n in range(100)
    ]
    job = job_on(document, runtimePatches=[patch(*jobs), patch(job_patch("j0"), manager="a.io/2")])
    assert exceeded(job) is None
    assert pod_of(plan(job, document)["JobSet"], "j99")["nodeSelector"] == {"a": "b"}


def test_sixteen_patches_of_a_hundred_jobs_exceed_the_limit_of_an_object() -> None:
    jobs = [job_patch(f"j{n}", hostname="a") for n in range(100)]
    patches = [patch(*jobs, manager=f"a.io/{n}") for n in range(16)]
    error = exceeded(job_on(RUNTIME, runtimePatches=patches))
    assert error is not None
    assert str(OBJECT_VALUES) in error.detail


def test_explanation_names_the_manager_of_the_last_patch() -> None:
    patches = [
        patch(job_patch(nodeSelector={"a": "1", "b": "1"}), manager="one.io/x"),
        patch(
            job_patch(nodeSelector={"a": "2"}, of_job={"labels": {"l": "2"}}),
            manager="two.io/x",
            metadata={"annotations": {"n": "2"}},
        ),
    ]
    job = TrainJob.parse(job_on(RUNTIME, runtimePatches=patches))
    trace = Explanation()
    existing = GivenObjects([in_namespace(RUNTIME)])
    RUNTIMES.of(job).new_objects(job, existing, trace)
    node = "spec.replicatedJobs[node].template"
    assert [str(each) for each in trace.settings() if "Patches" in (each.source or "")] == [
        'metadata.annotations[n] = "2"  TrainJob ← spec.runtimePatches[1] (two.io/x)',
        f'{node}.{POD.removeprefix("template.")}.nodeSelector[a] = "2"  TrainJob ← '
        "spec.runtimePatches[1] (two.io/x)",
        f'{node}.{POD.removeprefix("template.")}.nodeSelector[b] = "1"  TrainJob ← '
        "spec.runtimePatches[0] (one.io/x)",
        f'{node}.metadata.labels[l] = "2"  TrainJob ← spec.runtimePatches[1] (two.io/x)',
    ]


WORDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.dictionaries(WORDS, WORDS, max_size=3)
NAMED = st.lists(st.fixed_dictionaries({"name": WORDS}), max_size=3, unique_by=lambda x: x["name"])
VOLUME = st.one_of(
    st.builds(
        lambda name, size: {"name": name, "emptyDir": {"sizeLimit": size}},
        WORDS,
        st.sampled_from(["1", "1000m", "2Gi"]),
    ),
    st.builds(lambda name: {"name": name, "configMap": {"name": name}}, WORDS),
)
MOUNT = st.builds(lambda name, path: {"name": name, "mountPath": f"/{path}"}, WORDS, WORDS)
PODS = st.fixed_dictionaries(
    {},
    optional={
        "serviceAccountName": WORDS,
        "nodeSelector": TEXTS,
        "tolerations": st.lists(st.builds(lambda key: {"key": key}, WORDS), max_size=2),
        "schedulingGates": NAMED,
        "imagePullSecrets": NAMED,
        "volumes": st.lists(VOLUME, max_size=3, unique_by=lambda volume: volume["name"]),
        "containers": st.builds(
            lambda mounts: [{"name": "node", "volumeMounts": mounts}],
            st.lists(MOUNT, max_size=3, unique_by=lambda mount: mount["mountPath"]),
        ),
    },
)
CHANGES = st.lists(
    st.tuples(st.fixed_dictionaries({"labels": TEXTS, "annotations": TEXTS}), PODS), max_size=4
)


@settings(max_examples=150)
@given(CHANGES, st.integers(0, 4))
def test_patches_of_one_job_equal_the_same_overrides(
    changes: list[tuple[Object, Object]], split: int
) -> None:
    overrides = [
        {"targetJobs": [{"name": "node"}], "metadata": metadata, "spec": spec}
        for metadata, spec in changes
    ]
    patches = [
        patch(job_patch(pods=metadata, **spec), manager=f"a.io/{index}")
        for index, (metadata, spec) in enumerate(changes)
    ]
    expected = plan(job_on(RUNTIME, podTemplateOverrides=overrides), RUNTIME)
    assert plan(job_on(RUNTIME, runtimePatches=patches), RUNTIME) == expected
    mixed = {"podTemplateOverrides": overrides[:split], "runtimePatches": patches[split:]}
    assert plan(job_on(RUNTIME, **mixed), RUNTIME) == expected


def test_plan_does_not_change_the_trainjob() -> None:
    document = job_on(
        RUNTIME,
        runtimePatches=[
            patch(job_patch(volumes=[{"name": "a", "emptyDir": {"sizeLimit": "1000m"}}]))
        ],
    )
    job = TrainJob.parse(deepcopy(document))
    existing = GivenObjects([in_namespace(RUNTIME)])
    first = [each.manifest for each in RUNTIMES.of(job).new_objects(job, existing)]
    assert [each.manifest for each in RUNTIMES.of(job).new_objects(job, existing)] == first
    assert job.dump() == document
    assert info_of(document, RUNTIME).template["replicatedJobs"]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("nodeSelector", "nodeSelector[$patch]"),
        ("$retainKeys", "[$retainKeys]"),
        ("volumes", "volumes[0].csi.volumeAttributes[$setElementOrder/a]"),
    ],
)
def test_directives_of_strategic_merge_are_rejected_with_their_path(name: str, where: str) -> None:
    attributes = {"$setElementOrder/a": "b"}
    spec: Object = {
        "nodeSelector": {"$patch": "delete"},
        "$retainKeys": ["containers"],
        "volumes": [{"name": "v", "csi": {"driver": "a", "volumeAttributes": attributes}}],
    }
    path = f"spec.runtimePatches[0].{JOBS}[0].{POD}"
    place = f"{path}{where}" if where.startswith("[") else f"{path}.{where}"
    message = "is a directive of strategic merge patches, which cannot be set here"
    [error] = unplannable(patch(job_patch(**{name: spec[name]})))
    assert error == f"{place}: Forbidden: {message}"


def test_directives_in_metadata_are_rejected_with_their_path() -> None:
    pods = {"labels": {"$patch": "replace", "a": "b"}}
    path = f"spec.runtimePatches[0].{JOBS}[0].{POD.removesuffix('.spec')}.metadata.labels[$patch]"
    [error] = unplannable(patch(job_patch(pods=pods)))
    assert error.startswith(f"{path}: Forbidden: is a directive")


def test_directives_in_overrides_are_rejected_with_their_path() -> None:
    override = {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"$patch": "replace"}}}
    [error] = unplannable(podTemplateOverrides=[override])
    assert error.startswith("spec.podTemplateOverrides[0].spec.nodeSelector[$patch]: Forbidden")


def test_values_that_look_like_directives_are_data() -> None:
    env = [{"name": "A", "value": "$patch"}, {"name": "$patch", "value": "$(A)"}]
    found = planned(patch(job_patch(initContainers=[{"name": "fetch", "env": env}])))
    assert pod_of(found)["initContainers"][0]["env"] == env


@pytest.mark.parametrize(
    ("base", "wanted", "merged"),
    [
        (
            {"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"cpu": "8"}},
            {"limits": {"cpu": 2}},
            {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2"}},
        ),
        (
            {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            {"requests": {"cpu": "3"}},
            {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}},
        ),
        (
            {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
            {"limits": {"nvidia.com/gpu": "4"}},
            {"requests": {}, "limits": {"nvidia.com/gpu": "4"}},
        ),
        (
            {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            {"requests": {"cpu": "4"}, "limits": {"cpu": "3"}},
            {"requests": {"cpu": "4"}, "limits": {"cpu": "3"}},
        ),
        ({}, {"limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}}),
    ],
)
def test_patched_resources_are_adjusted_like_those_per_node(
    base: Object, wanted: Object, merged: Object
) -> None:
    document = runtime(jobs=[replicated_job(resources=deepcopy(base))], mlPolicy={})
    changes = patch(job_patch(containers=[{"name": "node", "resources": wanted}]))
    job = job_on(document, runtimePatches=[changes, changes | {"manager": "acme.io/again"}])
    found = container_of(plan(job, document)["JobSet"])["resources"]
    assert {half: found[half] for half in found if found[half]} == {
        half: merged[half] for half in merged if merged[half]
    }


def test_invalid_patched_resources_are_reported_once() -> None:
    resources = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    document = runtime(jobs=[replicated_job(resources=resources)], mlPolicy={})
    wanted = {"limits": {"cpu": "much"}}
    changes = patch(job_patch(containers=[{"name": "node", "resources": wanted}]))
    found = findings(job_on(document, runtimePatches=[changes]), document)
    [error] = found.errors
    path = f"spec.runtimePatches[0].{JOBS}[0].{POD}.containers[0].resources.limits[cpu]"
    assert error.path == path


def claims_patch(*claims: Object, pods: Object | None = None, manager: str = "a.io/b") -> Object:
    container = {"name": "node", "resources": {"claims": [*claims]}}
    return patch(job_patch(containers=[container], **(pods or {})), manager=manager)


def test_claim_of_a_container_that_its_pods_do_not_have_is_rejected() -> None:
    path = f"spec.runtimePatches[0].{JOBS}[0].{POD}.containers[0].resources.claims"
    assert rejected(claims_patch({"name": "known"}, {"name": "gpu"})) == [
        f'{path}[{index}].name: Invalid value: "{name}": is not the name of a resource claim of '
        "the pods: the API server would reject them"
        for index, name in enumerate(("known", "gpu"))
    ]


def test_claims_may_be_those_of_another_patch_or_be_replaced_by_one() -> None:
    template = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]}
    assert not rejected(
        claims_patch({"name": "unknown"}),
        claims_patch({"name": "gpu"}, manager="a.io/c"),
        patch(job_patch(**template), manager="a.io/d"),
    )


def admitted(jobs: int) -> Object:
    """Kueue's entry with what it sets for this number of jobs, including topology."""
    metadata = {
        "labels": {f"kueue.x-k8s.io/{n}": "x" * 63 for n in range(5)},
        "annotations": {f"kueue.x-k8s.io/{n}": "x" * 63 for n in range(3)},
    }
    toleration = {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    scheduling = {
        "nodeSelector": {"pool": "a", "zone": "b"},
        "tolerations": [toleration, toleration | {"key": "gpu"}],
        "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
    }
    changes = [job_patch(f"j{n}", pods=metadata, **scheduling) for n in range(jobs)]
    return patch(*changes, manager=names.QUEUE_MANAGER)


def test_trainjob_that_reaches_a_limit_has_room_for_the_entry_of_a_queue() -> None:
    document = runtime(jobs=[replicated_job(f"j{n}", None) for n in range(16)], mlPolicy={})
    env = [{"name": f"A{n}", "value": "x"} for n in range(512)]
    containers = [{"name": "j0", "env": env}, {"name": "j0-2", "env": env[:400]}]
    document["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
        "spec"
    ]["containers"].append({"name": "j0-2", "image": "a"})
    own = patch(job_patch("j0", containers=containers))
    empty, full = admitted(0), admitted(16)
    job = job_on(document, runtimePatches=[own, empty])
    spare = OBJECT_VALUES - values_in({"spec": job["spec"], "metadata": {}}) - 4
    job["spec"]["trainer"] = {"args": ["x"] * (spare - 2)}
    assert exceeded(job) is None
    job["spec"]["trainer"]["args"] += ["x"] * 10
    assert exceeded(job) is not None
    del job["spec"]["trainer"]["args"][-10:]
    job["spec"]["runtimePatches"] = [own, full]
    assert exceeded(job) is None
    assert pod_of(plan(job, document)["JobSet"], "j15")["nodeSelector"]["pool"] == "a"
    job["spec"]["runtimePatches"] = [own, full | {"manager": "acme.io/other"}]
    assert exceeded(job) is not None


def test_the_room_of_a_queue_is_limited() -> None:
    assert exceeded(job_on(RUNTIME, runtimePatches=[admitted(16)])) is None
    assert exceeded(job_on(RUNTIME, runtimePatches=[admitted(100)])) is not None


def test_work_for_the_entry_of_a_queue_is_reserved() -> None:
    document = runtime(jobs=[replicated_job(f"j{n}", None) for n in range(16)], mlPolicy={})

    def volumes(index: int) -> list[Object]:
        return [{"name": f"v{index}-{n}"} for n in range(20)]

    def largest(entry: Object) -> int:
        for number in range(16, 40):
            overrides = [
                {"targetJobs": [{"name": "j0"}], "spec": {"volumes": volumes(n)}}
                for n in range(number)
            ]
            job = job_on(document, podTemplateOverrides=overrides, runtimePatches=[entry])
            try:
                plan(job, document)
            except InvalidTrainJobError:
                return number
        raise AssertionError

    assert largest(admitted(16)) == largest(admitted(0))
    assert largest(admitted(16) | {"manager": "acme.io/other"}) < largest(admitted(0))
