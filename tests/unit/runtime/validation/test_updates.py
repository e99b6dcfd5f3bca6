"""What an update may change, before there is a JobSet, while there is one, and after the end."""

from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.validation.updates import change_errors, change_warnings
from tests.support.objects import Object, runtime
from tests.support.plans import NAMESPACE, UID, job_on

PLAIN = runtime(mlPolicy={})
OVERRIDES = "spec.podTemplateOverrides"
WHILE_RUNNING = (
    f"{OVERRIDES}: Forbidden: PodTemplateOverrides can only be modified when the TrainJob is "
    "suspended"
)
RECREATE = "to train with the change, delete the TrainJob and create it again"
JOBSET_CREATED = f"Forbidden: cannot be changed after the JobSet was created: {RECREATE}"
FINISHED = f"Forbidden: cannot be changed after the TrainJob has finished: {RECREATE}"
LASTING = (
    f"{OVERRIDES}: Forbidden: cannot be changed after the JobSet was created, except "
    "labels, annotations, nodeSelector, tolerations and schedulingGates of the pods: "
    f"{RECREATE}"
)
ASSET = {"storageUri": "hf://a/b", "env": [{"name": "A", "value": "hunter2"}]}


def job_set(*active: str, uid: str = UID) -> Object:
    owner = {"kind": "TrainJob", "name": "demo", "uid": uid, "controller": True}
    rows = [{"name": name, "active": 1} for name in active]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "demo", "namespace": NAMESPACE, "ownerReferences": [owner]},
        "spec": {"suspend": True},
        "status": {"replicatedJobsStatus": [*rows, {"name": "over", "active": 0}]},
    }


def error_messages(
    old: Object, new: Object, *existing: Object, end: str | None = None
) -> list[str]:
    """The errors for an update from one spec to another."""
    return [str(error) for error in errors_of(old, new, *existing, end=end)]


def errors_of(
    old: Object, new: Object, *existing: Object, end: str | None = None
) -> list[FieldError]:
    before, after = jobs_of(old, new, end=end)
    return [*change_errors(before, after, GivenObjects(existing))]


def jobs_of(old: Object, new: Object, *, end: str | None) -> tuple[TrainJob, TrainJob]:
    """The TrainJob before and after a change, which may have finished before."""
    before, after = (job_on(PLAIN, **spec) for spec in (old, new))
    if end:
        condition = {"type": end, "status": "True", "reason": "Any", "message": ""}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        before["status"] = after["status"] = {"conditions": [condition]}
    return TrainJob.parse(before), TrainJob.parse(after)


def overriding(*, suspend: bool = True, metadata: Object | None = None, **spec: Any) -> Object:
    override: Object = {"targetJobs": [{"name": "node"}], "spec": spec}
    if metadata is not None:
        override["metadata"] = metadata
    return {"suspend": suspend, "podTemplateOverrides": [override]}


GATED: Object = {"schedulingGates": [{"name": "a"}]}


@pytest.mark.parametrize(
    ("before", "after", "errors"),
    [
        (False, False, [WHILE_RUNNING]),
        (True, True, []),
        (True, False, []),  # resumed with it, as Kueue does
        (False, True, []),
    ],
)
def test_overrides_can_change_if_suspended_before_or_after(
    before: bool, after: bool, errors: list[str]
) -> None:
    """J5."""
    assert error_messages({"suspend": before}, overriding(suspend=after, **GATED)) == errors
    assert error_messages(overriding(suspend=before, **GATED), {"suspend": after}) == errors
    assert (
        error_messages(overriding(suspend=before, **GATED), overriding(suspend=after, **GATED))
        == []
    )


def test_overrides_cannot_change_while_jobs_are_active() -> None:
    """J7."""
    live = job_set("node", "launcher")
    active = "PodTemplateOverrides cannot be modified when the JobSet's ReplicatedJob {} is still"
    assert error_messages({"suspend": True}, overriding(**GATED), live) == [
        f"{OVERRIDES}: Forbidden: {active.format(name)} active" for name in ("node", "launcher")
    ]
    assert error_messages({"suspend": True}, overriding(**GATED), job_set()) == []
    assert (
        error_messages({"suspend": True}, overriding(**GATED), job_set("node", uid="other")) == []
    )
    assert error_messages(overriding(**GATED), overriding(**GATED), live) == []


RUNNING = {**job_set(), "spec": {}}
LABELS: Object = {"labels": {"team": "vision"}, "annotations": {"note": "x"}}


def warned(old: Object, new: Object, *existing: Object, end: str | None = None) -> list[str]:
    """The warnings about a change from this spec to that."""
    before, after = jobs_of(old, new, end=end)
    return [*change_warnings(before, after, GivenObjects(existing))]


@pytest.mark.parametrize("change", [({}, LABELS), (LABELS, {})], ids=["added", "removed"])
def test_labels_changed_while_the_jobset_runs_cause_a_warning(
    change: tuple[Object, Object],
) -> None:
    assert warned(*change, RUNNING) == [
        f"spec.{field}: no effect yet: the JobSet is running, and keeps its {field} until the "
        "TrainJob is suspended"
        for field in LABELS
    ]


def test_labels_that_take_effect_cause_no_warning() -> None:
    assert warned({}, LABELS) == []  # there is no JobSet yet
    assert warned({}, LABELS, job_set()) == []  # it is suspended
    assert warned({"suspend": True}, LABELS, job_set()) == []  # it is resumed with them
    assert warned({}, {**LABELS, "suspend": True}, RUNNING) == []  # it is suspended with them
    assert warned(LABELS, LABELS, RUNNING) == []
    assert warned({}, {"labels": {}, "annotations": {}}, RUNNING) == []
    assert warned({}, LABELS, {**job_set(uid="other"), "spec": {}}) == []


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_changes_after_the_end_cause_warnings(end: str) -> None:
    changed = {**LABELS, **overriding(**GATED)}
    assert warned({}, changed, RUNNING, end=end) == [
        f"{field}: no effect: the TrainJob has finished"
        for field in ("spec.labels", "spec.annotations", "spec.suspend", OVERRIDES)
    ]
    assert warned(changed, changed, end=end) == []


CHANGES: dict[str, tuple[Object, Object, list[str]]] = {
    "an image": (
        {"trainer": {"image": "a"}},
        {"trainer": {"image": "b"}},
        ["spec.trainer.image"],
    ),
    "a trainer that was not there": (
        {},
        {"trainer": {"numNodes": 2, "args": ["--token=hunter2"]}},
        ["spec.trainer.args", "spec.trainer.numNodes"],
    ),
    "a trainer that is gone": ({"trainer": {"numNodes": 2}}, {}, ["spec.trainer.numNodes"]),
    "one argument": (
        {"trainer": {"args": ["a", "b"]}},
        {"trainer": {"args": ["a", ""]}},
        ["spec.trainer.args"],
    ),
    "resources": (
        {"trainer": {"resourcesPerNode": {"requests": {"cpu": "4"}}}},
        {"trainer": {"resourcesPerNode": {"requests": {"cpu": "4001m"}}}},
        ["spec.trainer.resourcesPerNode"],
    ),
    "a variable": (
        {"initializer": {"dataset": ASSET}},
        {"initializer": {"dataset": {**ASSET, "env": [{"name": "A", "value": "b"}]}}},
        ["spec.initializer.dataset.env"],
    ),
    "a model": (
        {"initializer": {"dataset": ASSET}},
        {"initializer": {"dataset": ASSET, "model": ASSET}},
        ["spec.initializer.model.storageUri", "spec.initializer.model.env"],
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fields_fixed_by_the_jobset_cannot_change(change: tuple[Object, Object, list[str]]) -> None:
    """G20."""
    before, after, fields = change
    assert error_messages(before, after, job_set()) == [
        f"{field}: {JOBSET_CREATED}" for field in fields
    ]
    for end in ("Complete", "Failed"):
        assert error_messages(before, after, end=end) == [
            f"{field}: {FINISHED}" for field in fields
        ]
    assert error_messages(before, after) == []
    assert error_messages(before, after, job_set(uid="other")) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {"a": 1}}},
        {"serviceAccountName": "me"},
        {"imagePullSecrets": [{"name": "a"}]},
        {"containers": [{"name": "node", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}]},
        {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}]},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_immutable_parts_of_overrides_cannot_change(spec: Object) -> None:
    """G20."""
    assert error_messages({"suspend": True}, overriding(**spec), job_set()) == [LASTING]
    assert error_messages(overriding(**spec), {"suspend": True}, job_set()) == [LASTING]
    assert (
        error_messages(overriding(**spec), overriding(suspend=False, **spec, **GATED), job_set())
        == []
    )
    assert error_messages({"suspend": True}, overriding(**spec)) == []


@pytest.mark.parametrize(
    "override",
    [
        overriding(metadata={"labels": {"a": "b"}}),
        overriding(metadata={"annotations": {"a": ""}}),
        overriding(nodeSelector={"a": "b"}),
        overriding(tolerations=[{"operator": "Exists"}]),
        overriding(schedulingGates=[{"name": "a"}]),
    ],
)
def test_scheduling_overrides_can_change_while_suspended(override: Object) -> None:
    """G20."""
    assert error_messages({"suspend": True}, override, job_set()) == []
    assert error_messages(override, {"suspend": True}, job_set()) == []
    assert error_messages({}, {**override, "suspend": False}) == [WHILE_RUNNING]


def test_fields_without_effect_on_pods_can_always_change() -> None:
    before = {"trainer": {"image": "a"}, "labels": {"a": "b"}}
    after = {"trainer": {"image": "a"}, "annotations": {"a": "b"}, "suspend": True}
    assert error_messages(before, after, job_set("node")) == []
    assert error_messages(after, before, job_set("node"), end="Failed") == []


def test_error_path_has_the_field_name_of_the_trainjob() -> None:
    legacy = [{"targetJobs": [{"name": "node"}], "schedulingGates": [{"name": "a"}]}]
    removed = error_messages({"podSpecOverrides": legacy}, {"podSpecOverrides": []})
    assert [each.split(": ")[0] for each in removed] == ["spec.podSpecOverrides"]
    modern = overriding(suspend=False, **GATED)
    assert error_messages({"podSpecOverrides": legacy}, modern, job_set("node")) == []


def reserialised(cpu: object, divisor: Object, **more: Any) -> Object:
    """The same TrainJob, as various clients write it."""
    source = {"resourceFieldRef": {"resource": "limits.cpu", **divisor}}
    env = [{"name": "A", **more}, {"name": "CPUS", "valueFrom": source}]
    mount = {"name": "a", "mountPath": "/a"}
    return {
        "trainer": {"env": env, "resourcesPerNode": {"limits": {"cpu": cpu}}},
        "initializer": {"dataset": {"storageUri": "hf://a/b", "env": env}},
    } | overriding(
        volumes=[{"name": "a", "emptyDir": {"sizeLimit": cpu, **more}}],
        containers=[{"name": "node", "env": env, "volumeMounts": [mount]}],
    )


@pytest.mark.parametrize("same", [4, "4", "4000m"])
def test_equivalent_values_are_not_a_change(same: object) -> None:
    before = reserialised("4", {})
    after = reserialised(same, {"divisor": "0"}, value="")
    after["trainer"] |= {"args": [], "command": None, "resourcesPerNode": {"limits": {"cpu": same}}}
    after["initializer"] |= {"model": {"env": []}}
    override = after["podTemplateOverrides"][0]
    override["metadata"] = {"creationTimestamp": None, "labels": {}}
    override["spec"] |= {"tolerations": [], "affinity": {}, "nodeSelector": None}
    assert error_messages(before, after, job_set("node")) == []
    assert error_messages(after, before, job_set("node")) == []


def test_empty_label_value_is_a_change() -> None:
    before = overriding(suspend=False, metadata={"labels": {}})
    after = overriding(suspend=False, metadata={"labels": {"a": ""}})
    assert error_messages(before, after) == [WHILE_RUNNING]


def test_order_of_target_jobs_is_not_a_change() -> None:
    both = [{"name": "node"}, {"name": "other"}]
    before = {"podTemplateOverrides": [{"targetJobs": both, "spec": GATED}]}
    after = {"podTemplateOverrides": [{"targetJobs": both[::-1], "spec": GATED}]}
    assert error_messages(before, after) == []
    assert error_messages(before, overriding(suspend=False, **GATED)) == [WHILE_RUNNING]


def test_jobset_of_another_trainjob_is_ignored() -> None:
    change = ({"trainer": {"image": "a"}}, {"trainer": {"image": "b"}})
    assert error_messages(*change, job_set(uid="other")) == []


MOUNT = {"name": "data", "mountPath": "/data"}
DISK = {"volumeID": "a"}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        (
            {"containers": [{"name": "node", "volumeMounts": [{**MOUNT, "readOnly": False}]}]},
            {"containers": [{"name": "node", "volumeMounts": [MOUNT]}]},
        ),
        (
            {"volumes": [{"name": "data", "awsElasticBlockStore": {**DISK, "partition": 0}}]},
            {"volumes": [{"name": "data", "awsElasticBlockStore": DISK}]},
        ),
    ],
    ids=["false", "0"],
)
def test_fields_that_go_clients_omit_are_not_a_change(written: Object, sent: Object) -> None:
    assert error_messages(overriding(**written), overriding(**sent), job_set("node")) == []
    running = overriding(**sent, suspend=False)
    assert error_messages(overriding(**written, suspend=False), running, job_set("node")) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"namespaceSelector": {}}, {}),
        ({"labelSelector": {}}, {}),
    ],
)
def test_empty_selector_differs_from_no_selector(before: Object, after: Object) -> None:
    def affine(term: Object) -> Object:
        terms = [{"topologyKey": "zone", **term}]
        field = "requiredDuringSchedulingIgnoredDuringExecution"
        return overriding(affinity={"podAntiAffinity": {field: terms}})

    assert error_messages(affine(before), affine(after), job_set()) == [LASTING]


def test_rejected_change_reports_its_rule() -> None:
    image = {"trainer": {"image": "a"}}
    lasting = overriding(serviceAccountName="other")
    gated = overriding(**GATED)
    for rule, errors in {
        "override-while-running": errors_of({}, overriding(suspend=False, **GATED)),
        "override-while-active": errors_of({"suspend": True}, gated, job_set("node")),
        "override-after-jobset": errors_of({"suspend": True}, lasting, job_set()),
        "override-after-end": errors_of({"suspend": True}, lasting, end="Complete"),
        "change-after-jobset": errors_of({}, image, job_set()),
        "change-after-end": errors_of({}, image, job_set(), end="Failed"),
    }.items():
        assert [error.rule for error in errors] == [rule]


# Runtime patches.

PATCHES = "spec.runtimePatches"
PATCHED_WHILE_RUNNING = (
    f"{PATCHES}: Forbidden: RuntimePatches can only be modified when the TrainJob is suspended "
    "before or after the update"
)
LASTING_PATCH = (
    f"{PATCHES}: Forbidden: cannot be changed after the JobSet was created, except labels and "
    "annotations of the JobSet and of the pods, and nodeSelector, tolerations and schedulingGates "
    f"of the pods: {RECREATE}"
)


def patching(*patches: Object, suspend: bool = True) -> Object:
    return {"suspend": suspend, "runtimePatches": [*patches]}


def patch(
    *,
    manager: str = "acme.io/tuner",
    time: str | None = None,
    of_jobset: Object | None = None,
    of_job: Object | None = None,
    of_pods: Object | None = None,
    job: str = "node",
    **spec: Any,
) -> Object:
    """A runtime patch of one job, written in full."""
    pods: Object = {"spec": spec} | ({"metadata": of_pods} if of_pods else {})
    template: Object = {"spec": {"template": pods}} | ({"metadata": of_job} if of_job else {})
    job_set: Object = {"spec": {"replicatedJobs": [{"name": job, "template": template}]}}
    if of_jobset:
        job_set["metadata"] = of_jobset
    found = {"manager": manager, "trainingRuntimeSpec": {"template": job_set}}
    return found | ({"time": time} if time else {})


KUEUE = {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": {"spec": {}}}}


@pytest.mark.parametrize(
    ("before", "after", "errors"),
    [
        (False, False, [PATCHED_WHILE_RUNNING]),
        (True, True, []),
        (True, False, []),  # resumed with it in one request
        (False, True, []),
    ],
)
def test_patches_can_change_if_suspended_before_or_after(
    before: bool, after: bool, errors: list[str]
) -> None:
    old, new = patching(suspend=before), patching(patch(**GATED), suspend=after)
    assert error_messages(old, new, job_set()) == errors
    assert error_messages({**new, "suspend": before}, {**old, "suspend": after}) == errors
    assert error_messages({**new, "suspend": before}, new) == []


def test_patches_cannot_change_while_jobs_are_active() -> None:
    there = job_set("node", "launcher")
    active = "RuntimePatches cannot be modified when the JobSet's ReplicatedJob {} is still active"
    assert error_messages(patching(), patching(patch(**GATED)), there) == [
        f"{PATCHES}: Forbidden: {active.format(name)}" for name in ("node", "launcher")
    ]
    assert error_messages(patching(patch(**GATED)), patching(patch(**GATED)), there) == []


MUTABLE: dict[str, Object] = {
    "labels": patch(of_pods={"labels": {"a": "b"}}),
    "annotations": patch(of_pods={"annotations": {"a": ""}}),
    "labels of the JobSet": patch(of_jobset={"labels": {"a": "b"}}),
    "nodeSelector": patch(nodeSelector={"a": "b"}),
    "tolerations": patch(tolerations=[{"operator": "Exists"}]),
    "schedulingGates": patch(**GATED),
}
LASTING_PATCHES: dict[str, Object] = {
    "labels of the Jobs": patch(of_job={"labels": {"a": "b"}}),
    "affinity": patch(affinity={"nodeAffinity": {"a": 1}}),
    "serviceAccountName": patch(serviceAccountName="me"),
    "terminationGracePeriodSeconds": patch(terminationGracePeriodSeconds=0),
    "securityContext": patch(securityContext={"runAsUser": 1}),
    "a container": patch(containers=[{"name": "node", "securityContext": {"runAsUser": 1}}]),
    "volumes": patch(volumes=[{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}]),
}


@pytest.mark.parametrize("entry", MUTABLE.values(), ids=MUTABLE)
def test_mutable_part_of_patches_can_change_while_suspended(entry: Object) -> None:
    emptied = {**KUEUE, "manager": entry["manager"]}
    for other in (patching(), patching(emptied)):
        assert error_messages(other, patching(entry), job_set()) == []
        assert error_messages(patching(entry), other, job_set()) == []
        assert error_messages(
            {**other, "suspend": False}, patching(entry, suspend=False), job_set()
        ) == [PATCHED_WHILE_RUNNING]


@pytest.mark.parametrize("entry", LASTING_PATCHES.values(), ids=LASTING_PATCHES)
def test_immutable_part_of_patches_can_neither_be_added_nor_removed(entry: Object) -> None:
    """D39: CEL compares a field only if it exists before and after."""
    emptied = {**KUEUE, "manager": entry["manager"]}
    for other in (patching(), patching(emptied), patching(patch(job="other", **GATED))):
        assert error_messages(other, patching(entry), job_set()) == [LASTING_PATCH]
        assert error_messages(patching(entry), other, job_set()) == [LASTING_PATCH]
        assert error_messages(other, patching(entry)) == []
    finished = error_messages(patching(), patching(entry), end="Failed")
    assert finished == [
        LASTING_PATCH.replace("the JobSet was created", "the TrainJob has finished")
    ]


def test_scheduling_can_change_beside_an_immutable_part() -> None:
    entry = LASTING_PATCHES["volumes"]
    queue = patch(manager="kueue.x-k8s.io/manager", nodeSelector={"flavor": "spot"})
    for old, new in (((KUEUE, entry), (queue, entry)), ((queue, entry), (KUEUE, entry))):
        assert error_messages(patching(*old), patching(*new), job_set()) == []


def test_order_of_patches_is_a_change_but_order_of_jobs_is_not() -> None:
    one, two = patch(**GATED), patch(manager="acme.io/two", **GATED)
    running = {"suspend": False}
    assert error_messages({**patching(one, two), **running}, {**patching(two, one), **running}) == [
        PATCHED_WHILE_RUNNING
    ]
    both = patch(**GATED)
    jobs = both["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    jobs.append({**jobs[0], "name": "other"})
    turned = patch(**GATED)
    turned["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"] = jobs[::-1]
    assert error_messages({**patching(both), **running}, {**patching(turned), **running}) == []


@pytest.mark.parametrize("time", [None, "2026-01-01T00:00:00Z"])
def test_time_of_a_patch_never_counts_as_a_change(time: str | None) -> None:
    old = patching(patch(time="2025-01-01T00:00:00Z", serviceAccountName="me"), suspend=False)
    new = patching(patch(time=time, serviceAccountName="me"), suspend=False)
    assert error_messages(old, new, job_set("node")) == []


def test_patches_written_back_by_go_clients_are_not_a_change() -> None:
    mounts = [{"name": "a", "mountPath": "/a", "readOnly": False}]
    written = patch(
        of_pods={"labels": {"empty": ""}, "annotations": {}},
        nodeSelector={},
        tolerations=[],
        volumes=[{"name": "a", "emptyDir": {"sizeLimit": 1024}}],
        containers=[{"name": "node", "env": [], "volumeMounts": mounts}],
        initContainers=[],
    )
    sent = patch(
        time="2026-01-01T00:00:00Z",
        of_pods={"labels": {"empty": ""}},
        of_jobset={"labels": {}},
        volumes=[{"name": "a", "emptyDir": {"sizeLimit": "1024"}}],
        containers=[{"name": "node", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
    )
    running = {"suspend": False}
    for old, new in ((written, sent), (sent, written)):
        before, after = {**patching(KUEUE, old), **running}, {**patching(new), **running}
        assert error_messages(before, after, job_set("node")) == []


def test_change_of_patches_after_the_end_causes_a_warning() -> None:
    assert warned(patching(), patching(patch(**GATED)), end="Complete") == [
        f"{PATCHES}: no effect: the TrainJob has finished"
    ]
    assert warned(patching(), patching(KUEUE), end="Complete") == []


def test_rejected_change_of_patches_reports_its_rule() -> None:
    gated, lasting = patching(patch(**GATED)), patching(LASTING_PATCHES["volumes"])
    for rule, errors in {
        "patch-while-running": errors_of({}, {**gated, "suspend": False}),
        "patch-while-active": errors_of(patching(), gated, job_set("node")),
        "patch-after-jobset": errors_of(patching(), lasting, job_set()),
        "patch-after-end": errors_of(patching(), lasting, end="Complete"),
    }.items():
        assert [error.rule for error in errors] == [rule]


def patched_container(suspend: bool = True, **container: Any) -> Object:  # noqa: FBT002
    pods = {"containers": [{"name": "node", **container}]}
    job = {"name": "node", "template": {"spec": {"template": {"spec": pods}}}}
    template = {"spec": {"replicatedJobs": [job]}}
    patch = {"manager": "acme.io/tuner", "trainingRuntimeSpec": {"template": template}}
    return {"runtimePatches": [patch], "suspend": True}


@pytest.mark.parametrize("field", ["runAsNonRoot", "allowPrivilegeEscalation"])
def test_false_in_a_security_context_is_a_change(field: str) -> None:
    strict = patched_container(securityContext={field: False})
    [error] = error_messages(patched_container(), strict, job_set())
    assert error.startswith("spec.runtimePatches: Forbidden: cannot be changed after")
    assert error_messages(strict, patched_container(), job_set()) == [error]
    assert error_messages(strict, strict, job_set()) == []


def test_false_elsewhere_is_the_same_as_unset() -> None:
    mount = {"name": "data", "mountPath": "/data"}
    explicit = patched_container(volumeMounts=[{**mount, "readOnly": False}])
    assert error_messages(patched_container(volumeMounts=[mount]), explicit, job_set()) == []
