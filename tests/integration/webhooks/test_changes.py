"""Which fields of a TrainJob with a JobSet may be changed, and when."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from tests.integration.controllers.team import COMPLETED, FAILED, JOB, Team
from tests.integration.webhooks.cases import NODE, job_on, job_with, merge_patch, placed, torch
from tests.support.webhooks import AdmissionClient, AdmissionOutcome

pytestmark = pytest.mark.integration

RECREATE = "to train with the change, delete the TrainJob and create it again"
MUTABLE = "except labels, annotations, nodeSelector, tolerations and schedulingGates of the pods"
MUTABLE_OF_PATCHES = (
    "except labels and annotations of the JobSet and of the pods, and nodeSelector, tolerations "
    "and schedulingGates of the pods"
)
# Messages by the rules' names in docs/admission.md.
CHANGE_RULES = {
    "override-while-running": (
        "Forbidden: PodTemplateOverrides can only be modified when the TrainJob is suspended"
    ),
    "override-while-active": (
        "Forbidden: PodTemplateOverrides cannot be modified when the JobSet's ReplicatedJob {} "
        "is still active"
    ),
    "change-after-jobset": (
        f"Forbidden: cannot be changed after the JobSet was created: {RECREATE}"
    ),
    "override-after-jobset": (
        f"Forbidden: cannot be changed after the JobSet was created, {MUTABLE}: {RECREATE}"
    ),
    "change-after-end": (
        f"Forbidden: cannot be changed after the TrainJob has finished: {RECREATE}"
    ),
    "override-after-end": (
        f"Forbidden: cannot be changed after the TrainJob has finished, {MUTABLE}: {RECREATE}"
    ),
    "patch-while-running": (
        "Forbidden: RuntimePatches can only be modified when the TrainJob is suspended before or "
        "after the update"
    ),
    "patch-while-active": (
        "Forbidden: RuntimePatches cannot be modified when the JobSet's ReplicatedJob {} is still "
        "active"
    ),
    "patch-after-jobset": (
        "Forbidden: cannot be changed after the JobSet was created, "
        f"{MUTABLE_OF_PATCHES}: {RECREATE}"
    ),
    "patch-after-end": (
        "Forbidden: cannot be changed after the TrainJob has finished, "
        f"{MUTABLE_OF_PATCHES}: {RECREATE}"
    ),
}
# Warnings, likewise.
METADATA_LATER = (
    "no effect yet: the JobSet is running, and keeps its {} until the TrainJob is suspended"
)
AFTER_END = "no effect: the TrainJob has finished"
DIALECTS = ("podTemplateOverrides", "podSpecOverrides", "runtimePatches")
RULES_OF = dict.fromkeys(DIALECTS, "override") | {"runtimePatches": "patch"}
ROWS = [
    {"name": name, "ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 1}
    for name in ("dataset-initializer", "node")
]
ACTIVE_ROWS = [{**row, "active": 1, "suspended": 0} for row in ROWS]
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
RUNTIME = torch(job_with("dataset-initializer", "dataset-initializer"), job_with())


def overriding(dialect: str, metadata: Object | None = None, **spec: Any) -> Object:
    """A part of a TrainJob's spec: an override or a runtime patch of the node's pods."""
    if dialect == "podSpecOverrides":
        return {dialect: [{"targetJobs": NODE, **spec}]}
    if dialect == "runtimePatches":
        pods = {"spec": spec} | ({"metadata": metadata} if metadata else {})
        job = {"name": "node", "template": {"spec": {"template": pods}}}
        template = {"spec": {"replicatedJobs": [job]}}
        return {dialect: [{"manager": "acme.io/a", "trainingRuntimeSpec": {"template": template}}]}
    fields = {"metadata": metadata} if metadata else {}
    return {dialect: [{"targetJobs": NODE, "spec": spec, **fields}]}


class JobEditor:
    """A TrainJob with its JobSet, and a user who changes it."""

    def __init__(self, team: Team, user: AdmissionClient) -> None:
        self.team = team
        self.user = user

    async def start(self, runtime: Object = RUNTIME, **spec: Any) -> Object:
        """Create runtime and TrainJob; the TrainJob, once the manager has seen its JobSet."""
        await self.create(runtime, **spec)
        await self.team.wait_until_exists("JobSet")
        return await self.jobs_are(ROWS if spec.get("suspend") else ACTIVE_ROWS)

    async def create(self, runtime: Object, **spec: Any) -> None:
        """Create runtime and TrainJob."""
        at = ("TrainingRuntime", "torch", self.team.namespace)
        for manifest in (placed(runtime, *at), job_on(*at, **spec)):
            outcome = await self.user.create(manifest)
            assert outcome.accepted, outcome.message

    async def jobs_are(self, rows: list[Object]) -> Object:
        """Set the JobSet's status; return the TrainJob once the manager has processed it."""
        await self.team.set_jobset_status(rows=rows)
        return await self.team.wait_for_jobs_status(*rows)

    async def change(self, *, dry_run: bool = True, **spec: Any) -> AdmissionOutcome:
        """Change fields of the spec in three ways, which must be answered alike; the last answer.

        A field that is None is removed.
        """
        stored = await self.team.get("TrainJob")
        new = {key: value for key, value in {**stored["spec"], **spec}.items() if value is not None}
        applied: Object = {key: stored[key] for key in ("apiVersion", "kind")}
        applied["metadata"] = {"name": JOB, "namespace": self.team.namespace}
        applied["spec"] = new
        answers = [
            await self.user.replace_now(stored, lambda now: {**now, "spec": new}, dry_run=True),
            await self.user.patch(
                stored, {"spec": merge_patch(stored["spec"], new)}, dry_run=dry_run
            ),
        ]
        if None not in spec.values():  # of which apply owns only its own fields
            answers.append(await self.user.apply(applied, dry_run=True))
        outcomes = {(each.status, each.message, *each.warnings) for each in answers}
        assert len(outcomes) == 1, outcomes
        return answers[1]


@pytest_asyncio.fixture
async def editor(user: AdmissionClient, api: ApiClient, namespace: str) -> AsyncIterator[JobEditor]:
    yield JobEditor(Team(api, namespace), user)


def denial_message(path: str, rule: str) -> str:
    """The denial message about the field."""
    return f"{path}: {CHANGE_RULES[rule]}"


def check_accepted(outcome: AdmissionOutcome) -> None:
    assert (outcome.message, outcome.warnings) == ("", [])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_overrides_stay_while_the_train_job_runs(dialect: str, editor: JobEditor) -> None:
    gates = overriding(dialect, schedulingGates=[{"name": "acme.io/hold"}])
    await editor.start()
    outcome = await editor.change(**gates)
    assert outcome.denial == denial_message(f"spec.{dialect}", f"{RULES_OF[dialect]}-while-running")
    await editor.jobs_are(ROWS)
    check_accepted(await editor.change(**gates, suspend=True))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_overrides_stay_while_there_are_pods(dialect: str, editor: JobEditor) -> None:
    gates = overriding(dialect, schedulingGates=[{"name": "acme.io/hold"}])
    await editor.start(suspend=True)
    check_accepted(await editor.change(**gates))
    await editor.jobs_are(ACTIVE_ROWS)
    outcome = await editor.change(**gates)
    message = denial_message(f"spec.{dialect}", f"{RULES_OF[dialect]}-while-active")
    errors = (message.format(row["name"]) for row in ROWS)
    assert outcome.denial == f"[{', '.join(errors)}]"
    check_accepted(await editor.change(suspend=False))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "lasting",
    [
        {"serviceAccountName": "other"},
        {"affinity": {"podAntiAffinity": {PREFERRED: [SPREAD]}}},
        {"volumes": [{"name": "a", "emptyDir": {}}]},
        {"imagePullSecrets": [{"name": "other"}]},
        {"containers": [{"name": "node", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}]},
    ],
    ids=lambda lasting: next(iter(lasting)),
)
async def test_immutable_override_fields_are_rejected_once_a_jobset_exists(
    dialect: str, lasting: Object, editor: JobEditor
) -> None:
    before = {"tolerations": [{"operator": "Exists"}], "imagePullSecrets": [{"name": "one"}]}
    await editor.start(suspend=True, **overriding(dialect, **before))
    outcome = await editor.change(**overriding(dialect, **{**before, **lasting}))
    assert outcome.denial == denial_message(f"spec.{dialect}", f"{RULES_OF[dialect]}-after-jobset")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mutable_override_fields_are_accepted_once_a_jobset_exists(
    dialect: str, editor: JobEditor
) -> None:
    labels = {"labels": {"team": "a"}, "annotations": {"acme.io/why": "b"}}
    await editor.start(suspend=True)
    for spec in (
        {"nodeSelector": {"disk": "ssd"}},
        {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
        {"schedulingGates": [{"name": "acme.io/hold"}]},
    ):
        check_accepted(await editor.change(**overriding(dialect, **spec)))
    if dialect != "podSpecOverrides":
        check_accepted(await editor.change(**overriding(dialect, labels)))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_override_cannot_be_removed_once_it_has_done_its_work(
    dialect: str, editor: JobEditor
) -> None:
    """D39, for runtime patches."""
    await editor.start(suspend=True, **overriding(dialect, serviceAccountName="other"))
    outcome = await editor.change(**{dialect: None})
    assert outcome.denial == denial_message(f"spec.{dialect}", f"{RULES_OF[dialect]}-after-jobset")


TRAINER = {"image": "trainer:1", "env": [{"name": "TOKEN", "value": "hunter2"}], "args": ["a"]}
CHANGES: dict[str, Object] = {
    "spec.trainer.image": {"trainer": {**TRAINER, "image": "trainer:2"}},
    "spec.trainer.numNodes": {"trainer": {**TRAINER, "numNodes": 2}},
    "spec.trainer.numProcPerNode": {"trainer": {**TRAINER, "numProcPerNode": 2}},
    "spec.trainer.command": {"trainer": {**TRAINER, "command": ["true"]}},
    "spec.trainer.args": {"trainer": {**TRAINER, "args": ["b"]}},
    "spec.trainer.env": {"trainer": {**TRAINER, "env": [{"name": "TOKEN", "value": "hunter3"}]}},
    "spec.trainer.resourcesPerNode": {
        "trainer": {**TRAINER, "resourcesPerNode": {"limits": {"cpu": "2"}}}
    },
    "spec.initializer.dataset.storageUri": {
        "initializer": {"dataset": {"storageUri": "hf://a/other"}}
    },
    "spec.initializer.dataset.env": {
        "initializer": {
            "dataset": {"storageUri": "hf://a/b", "env": [{"name": "A", "value": "hunter2"}]}
        }
    },
    "spec.initializer.dataset.secretRef": {
        "initializer": {"dataset": {"storageUri": "hf://a/b", "secretRef": {"name": "token"}}}
    },
}
WHOLE = {"trainer": TRAINER, "initializer": {"dataset": {"storageUri": "hf://a/b"}}}


@pytest.mark.parametrize("suspend", [True, False], ids=["suspended", "running"])
async def test_immutable_fields_are_rejected_once_a_jobset_exists(
    suspend: bool, editor: JobEditor
) -> None:
    await editor.start(suspend=suspend, **WHOLE)
    for path, change in CHANGES.items():
        outcome = await editor.change(**change)
        assert outcome.denial == denial_message(path, "change-after-jobset")
    outcome = await editor.change(labels={"a": "b"}, annotations={"c": "d"})
    fields = () if suspend else ("labels", "annotations")
    warnings = [f"spec.{field}: {METADATA_LATER.format(field)}" for field in fields]
    assert (outcome.message, outcome.warnings) == ("", warnings)
    outcome = await editor.change(trainer=None)
    fields = (f"spec.trainer.{field}" for field in ("image", "args", "env"))
    errors = (denial_message(field, "change-after-jobset") for field in fields)
    assert outcome.denial == f"[{', '.join(errors)}]"
    assert "hunter" not in outcome.message


@pytest.mark.parametrize("end", [COMPLETED, FAILED], ids=["complete", "failed"])
async def test_immutable_fields_are_rejected_after_the_job_finished(
    end: Object, editor: JobEditor
) -> None:
    await editor.start(**WHOLE)
    await editor.team.set_jobset_status(end, rows=ROWS)
    await editor.team.wait_for_condition(
        {"Completed": "Complete"}.get(end["type"], "Failed"), end["reason"]
    )
    await editor.team.delete("JobSet")
    await editor.team.wait_until_deleted("JobSet")
    for path, change in CHANGES.items():
        outcome = await editor.change(**change)
        assert outcome.denial == denial_message(path, "change-after-end")
    for dialect in DIALECTS:
        outcome = await editor.change(
            suspend=True, **overriding(dialect, serviceAccountName="other")
        )
        assert outcome.denial == denial_message(f"spec.{dialect}", f"{RULES_OF[dialect]}-after-end")
    outcome = await editor.change(suspend=True, labels={"a": "b"})
    ignored = [f"{field}: {AFTER_END}" for field in ("spec.labels", "spec.suspend")]
    assert (outcome.message, outcome.warnings) == ("", ignored)


async def test_everything_can_be_changed_before_there_is_a_jobset(editor: JobEditor) -> None:
    await editor.create(RUNTIME, managedBy="kueue.x-k8s.io/multikueue", suspend=True, **WHOLE)
    for change in CHANGES.values():
        check_accepted(await editor.change(**change))
    for dialect in DIALECTS:
        check_accepted(await editor.change(**overriding(dialect, serviceAccountName="other")))


async def test_fields_written_back_by_go_clients_are_not_a_change(editor: JobEditor) -> None:
    override = {
        "targetJobs": NODE,
        "metadata": {"labels": {"empty": ""}},
        "spec": {
            "nodeSelector": {},
            "tolerations": [],
            "volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1024Mi"}}],
            "containers": [{"name": "node", "volumeMounts": []}],
        },
    }
    resources = {"limits": {"cpu": 2, "memory": "1024Mi"}, "requests": {"cpu": "2000m"}}
    trainer = {"resourcesPerNode": resources, "args": [], "env": [{"name": "A"}]}
    created = await editor.start(trainer=trainer, podTemplateOverrides=[override])
    rewritten = {
        **override,
        "metadata": {"labels": {"empty": ""}, "annotations": None},
        "spec": {
            "volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}],
            "containers": [{"name": "node"}],
        },
    }
    spec = {
        **created["spec"],
        "labels": {},
        "podSpecOverrides": [],
        "podTemplateOverrides": [rewritten],
        "trainer": {
            "env": [{"name": "A", "value": ""}],
            "resourcesPerNode": {
                "limits": {"cpu": "2", "memory": "1Gi"},
                "requests": {"cpu": "2"},
            },
        },
    }

    async def put(**change: Any) -> AdmissionOutcome:
        now = {**spec, **change}
        return await editor.user.replace_now(
            created, lambda old: {**old, "spec": now}, dry_run=True
        )

    check_accepted(await put())
    outcome = await put(trainer={**spec["trainer"], "env": [{"name": "A", "value": "b"}]})
    assert outcome.denial == denial_message("spec.trainer.env", "change-after-jobset")
