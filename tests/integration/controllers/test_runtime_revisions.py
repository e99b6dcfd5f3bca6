"""TrainJobs keep the runtime with which they began, in a ControllerRevision that they share."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kftrainer.api.resources import TRAINING_RUNTIMES
from kftrainer.api.runtime_revisions import content_of, revision_manifest, revision_name
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.burst import (
    SETTLED_WITHIN,
    play_jobset_controller,
    some_at_a_time,
)
from tests.integration.controllers.team import (
    JOB,
    TEST_TIMEOUT,
    Team,
    a_runtime,
    conditions_of,
)
from tests.integration.controllers.test_writes import requests_since, wait_until_started, working
from tests.support.fault_proxy import Cut, FaultProxy, ProxiedRequest, status_answer
from tests.support.managers import FAST, KFTRAINER, ManagerProcess, manager_process
from tests.support.plans import container_of

MANY = 200
KIND = "ControllerRevision"
LABEL = "trainer.kubeflow.org/runtime-kind"
CREATE = "POST controllerrevisions"
TIMES = 30  # how many times faster the clock of a manager runs that deletes revisions


def edited(image: str) -> Object:
    """Return the spec of the runtime with another image."""
    spec: Object = a_runtime("torch")["spec"]
    [job] = spec["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return spec


async def edit(team: Team, image: str = "trainer:2") -> None:
    await team.patch("TrainingRuntime", "torch", {"spec": edited(image)})


async def delete_runtime(team: Team) -> None:
    """Delete the runtime although TrainJobs use it; a manager adds its finalizer only once."""

    async def deleted() -> bool:
        if await team.find("TrainingRuntime", "torch") is None:
            return True
        await team.delete("TrainingRuntime", "torch")
        if await team.find("TrainingRuntime", "torch") is not None:
            await team.patch("TrainingRuntime", "torch", {"metadata": {"finalizers": None}})
        return False

    await until(deleted, within=TEST_TIMEOUT, what="the end of the runtime")


async def images(team: Team) -> dict[str, str]:
    """Return the image of each JobSet."""
    found = await team.all("JobSet")
    return {each["metadata"]["name"]: container_of(each)["image"] for each in found}


async def wait_until_recorded(team: Team, names: Sequence[str]) -> str:
    """Wait until the TrainJobs record a revision; return its name, which they share."""

    async def recorded() -> set[str | None] | None:
        jobs = {each["metadata"]["name"]: each for each in await team.all("TrainJob")}
        found = {jobs[each].get("status", {}).get("runtimeRevision") for each in names}
        return None if None in found else found

    found = await until(recorded, within=SETTLED_WITHIN, what="all revisions being recorded")
    [name] = found
    assert name is not None
    return name


async def wait_for_revisions(team: Team, *names: str) -> None:
    """Wait until exactly these revisions exist."""

    async def exist() -> bool:
        found = {each["metadata"]["name"] for each in await team.all(KIND)}
        return found == set(names)

    await until(exist, within=TEST_TIMEOUT, what=f"the revisions {names}")


@asynccontextmanager
async def fast(kubeconfig: Path, team: Team) -> AsyncIterator[ManagerProcess]:
    """A manager whose grace periods are short."""
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    program = (*FAST, str(TIMES))
    async with manager_process(kubeconfig, *flags, program=program) as manager:
        await wait_until_started(manager, 1)
        yield manager


async def test_runtime_changes_have_no_effect_on_200_jobs_which_share_a_revision(
    proxy: FaultProxy, team: Team
) -> None:
    waiting = [f"waits-{number}" for number in range(MANY // 2)]
    running = [f"runs-{number}" for number in range(MANY // 2)]
    await team.create_runtime()
    async with working(proxy, team) as manager:
        before = len(proxy.requests)
        await some_at_a_time(team.create_job(name, suspend=True) for name in waiting)
        await some_at_a_time(team.create_job(name) for name in running)
        await play_jobset_controller(team, {name: [] for name in running})
        first = await wait_until_recorded(team, [*waiting, *running])
        writes = Counter(
            each.split("/")[0] + each[each.rfind("/status") :] * each.endswith("/status")
            for each in requests_since(proxy, before)
            if "trainingruntimes" not in each
        )
        assert writes == {
            CREATE: 1,
            "PATCH jobsets": MANY,
            "PATCH trainjobs/status": MANY,
        }

        await edit(team)
        await team.create_job("new", suspend=True)
        second = await wait_until_recorded(team, ["new"])
        assert second != first
        await delete_runtime(team)
        manager.kill()
        manager.start()
        await wait_until_started(manager, 2)

        # Resume, suspend, and delete the JobSets of some.
        await team.suspend(suspend=False, name=waiting[0])
        await team.wait_for_condition("Suspended", "Resumed", "False", waiting[0])
        await team.suspend(suspend=True, name=running[0])
        await team.wait_for_condition("Suspended", "Suspended", name=running[0])
        for name in (waiting[1], running[1]):
            uid = (await team.get("JobSet", name))["metadata"]["uid"]
            await team.delete("JobSet", name)

            async def created_again(name: str = name, uid: str = uid) -> bool:
                found = await team.find("JobSet", name)
                return found is not None and found["metadata"]["uid"] != uid

            await until(created_again, within=TEST_TIMEOUT, what="another JobSet")
        wanted = dict.fromkeys([*waiting, *running], "trainer:1") | {"new": "trainer:2"}
        assert await images(team) == wanted
        assert await wait_until_recorded(team, [*waiting, *running]) == first
        blocked = [each for each in await team.all("TrainJob") if "Blocked" in conditions_of(each)]
        assert blocked == []
        assert {each["reason"] for each in await team.all("Event")} <= {"Contested"}
        creations = [each for each in requests_since(proxy, before) if each == CREATE]
        assert len(creations) == 2
    await team.delete("JobSet", "new")


async def test_unused_revisions_are_deleted_and_used_ones_are_kept(
    plane: ControlPlane, team: Team
) -> None:
    await team.create_runtime()
    async with fast(plane.kubeconfig, team):
        names = [f"job-{number}" for number in range(5)]
        await some_at_a_time(team.create_job(name, suspend=True) for name in names)
        first = await wait_until_recorded(team, names)
        await edit(team)
        await team.create_job("new", suspend=True)
        second = await wait_until_recorded(team, ["new"])
        await team.delete("TrainJob", "new")
        await wait_for_revisions(team, first)
        assert second != first
        for name in names:
            await team.delete("TrainJob", name)
        await wait_for_revisions(team)


async def test_revision_of_a_manager_that_was_killed_before_the_jobset_is_not_binding(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    async with working(proxy, team) as manager:
        proxy.inject(status_answer(503, "ServiceUnavailable"), writes("jobsets"), times=1000)
        await team.create_job(suspend=True)

        async def created() -> Sequence[Object] | None:
            return await team.all(KIND) or None

        [first] = await until(created, within=TEST_TIMEOUT, what="the revision")
        manager.kill()
        await edit(team)
        proxy.forget_faults()
        manager.start()
        name = await wait_until_recorded(team, [JOB])
    assert name != first["metadata"]["name"]
    assert await images(team) == {JOB: "trainer:2"}


async def test_rejected_jobset_follows_the_corrected_runtime(proxy: FaultProxy, team: Team) -> None:
    await team.create_runtime()
    async with working(proxy, team) as manager:
        proxy.inject(status_answer(422, "Invalid"), writes("jobsets"), times=1000)
        await team.create_job(suspend=True)
        await team.wait_for_condition("Blocked", "ResourcesCreationFailed")
        assert "runtimeRevision" not in (await team.get("TrainJob"))["status"]
        await edit(team)
        await team.touch(manager)
        proxy.forget_faults()
        await wait_until_recorded(team, [JOB])
    assert await images(team) == {JOB: "trainer:2"}


async def test_manager_killed_before_the_status_records_the_same_revision_later(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    async with working(proxy, team) as manager:
        proxy.inject(status_answer(503, "ServiceUnavailable"), writes("trainjobs"), times=1000)
        await team.create_job(suspend=True)
        await team.wait_until_exists("JobSet")
        [first] = await team.all(KIND)
        manager.kill()
        proxy.forget_faults()
        before = len(proxy.requests)
        manager.start()
        assert await wait_until_recorded(team, [JOB]) == first["metadata"]["name"]
        assert CREATE not in requests_since(proxy, before)


async def test_failed_status_write_keeps_the_revision_although_the_runtime_changes(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    async with working(proxy, team):
        proxy.inject(status_answer(503, "ServiceUnavailable"), writes("trainjobs"), times=1000)
        await team.create_job(suspend=True)
        await team.wait_until_exists("JobSet")
        [first] = await team.all(KIND)
        await edit(team)
        proxy.forget_faults()
        assert await wait_until_recorded(team, [JOB]) == first["metadata"]["name"]
        await team.delete("JobSet")
        await team.wait_until_exists("JobSet")
    assert await images(team) == {JOB: "trainer:1"}


async def test_revision_is_recorded_although_the_response_to_the_create_request_is_lost(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    async with working(proxy, team):
        proxy.inject(Cut(0, reset=True), writes("jobsets"), times=1000)
        await team.create_job(suspend=True)
        await team.wait_until_exists("JobSet")
        [first] = await team.all(KIND)
        await edit(team)
        proxy.forget_faults()
        assert await wait_until_recorded(team, [JOB]) == first["metadata"]["name"]
        await team.delete("JobSet")
        await team.wait_until_exists("JobSet")
    assert await images(team) == {JOB: "trainer:1"}


def writes(plural: str) -> Any:
    def match(request: ProxiedRequest) -> bool:
        return request.is_write and f"/{plural}/" in request.path

    return match


def forged(runtime: Object, **changes: Any) -> Object:
    """Return the ControllerRevision that a TrainJob would begin with, changed by another client."""
    content = content_of(TRAINING_RUNTIMES.decode(runtime))
    manifest = revision_manifest(content, "", revision_name(content), 1)
    return {**manifest, **changes}


@pytest.mark.parametrize("how", ["content", "no label"])
async def test_foreign_object_with_the_name_is_neither_used_nor_changed(
    how: str, plane: ControlPlane, team: Team
) -> None:
    manifest = forged(await team.create_runtime())
    if how == "content":
        manifest = {**manifest, "data": {**manifest["data"], "spec": edited("evil:1")}}
    else:
        metadata = {"name": manifest["metadata"]["name"]}
        manifest = {**manifest, "metadata": metadata}
    foreign = await team.create(manifest)
    name = foreign["metadata"]["name"]
    async with fast(plane.kubeconfig, team):
        await team.create_job(suspend=True)
        assert await wait_until_recorded(team, [JOB]) == f"{name}-1"
        await edit(team)
        await team.delete("JobSet")
        await team.wait_until_exists("JobSet")
        assert await images(team) == {JOB: "trainer:1"}
        await team.delete("TrainJob")
        await wait_for_revisions(team, name)
    assert await team.get(KIND, name) == foreign


async def test_job_is_blocked_while_foreign_objects_have_all_names(
    plane: ControlPlane, team: Team
) -> None:
    manifest = forged(await team.create_runtime(), data={"evil": True})
    name = manifest["metadata"]["name"]
    taken = [name, *(f"{name}-{number}" for number in (1, 2, 3))]
    for each in taken:
        await team.create({**manifest, "metadata": {**manifest["metadata"], "name": each}})
    async with fast(plane.kubeconfig, team):
        await team.create_job(suspend=True)
        job = await team.wait_for_condition("Blocked", "NameTaken")
        assert name in conditions_of(job)["Blocked"]["message"]
        assert await team.find("JobSet") is None
        await team.delete(KIND, taken[2])
        assert await wait_until_recorded(team, [JOB]) == taken[2]
        await team.wait_until_condition_removed("Blocked")


async def test_deleted_revision_is_created_again_while_the_runtime_is_unchanged(
    plane: ControlPlane, team: Team
) -> None:
    await team.create_runtime()
    async with fast(plane.kubeconfig, team):
        await team.create_job(suspend=True)
        name = await wait_until_recorded(team, [JOB])
        await team.delete(KIND, name)
        await wait_for_revisions(team, name)
        await edit(team)
        await team.delete("JobSet")
        await team.wait_until_exists("JobSet")
    assert await images(team) == {JOB: "trainer:1"}


async def test_jobset_is_kept_but_not_created_again_without_the_revision(
    plane: ControlPlane, team: Team
) -> None:
    await team.create_runtime()
    async with fast(plane.kubeconfig, team) as manager:
        await team.create_job()
        await play_jobset_controller(team, {JOB: []})
        name = await wait_until_recorded(team, [JOB])
        kept = await team.get(KIND, name)
        await edit(team)
        await team.touch(manager)
        await team.delete(KIND, name)
        event = await team.wait_for_event("RuntimeRevisionLost")
        assert "the existing JobSet is kept" in event["message"]
        await team.suspend(suspend=True)
        await team.wait_for_condition("Suspended", "Suspended")
        assert await images(team) == {JOB: "trainer:1"}
        await team.delete("JobSet")
        job = await team.wait_for_condition("Blocked", "RuntimeRevisionLost")
        assert f"{team.namespace}/{name}" in conditions_of(job)["Blocked"]["message"]

        # A forged revision of that name is not used.
        spec = edited("evil:1")
        metadata = {"name": name, "labels": kept["metadata"]["labels"]}
        evil = {**kept, "metadata": metadata, "data": {**kept["data"], "spec": spec}}
        await team.create(evil)
        await team.touch(manager)
        assert await team.find("JobSet") is None
        await team.delete(KIND, name)
        await team.create({**kept, "metadata": metadata})
        await team.wait_until_exists("JobSet")
        await team.wait_until_condition_removed("Blocked")
    assert await images(team) == {JOB: "trainer:1"}


async def test_large_runtime_is_kept_in_a_revision_too(plane: ControlPlane, team: Team) -> None:
    runtime = a_runtime("torch")
    runtime["metadata"]["annotations"] = {"example.com/notes": "x" * 200_000}
    await team.create(runtime)
    async with fast(plane.kubeconfig, team):
        for name in ("one", "two"):
            await team.create_job(name, suspend=True)
        first = await wait_until_recorded(team, ["one", "two"])
        await edit(team)
        await team.delete("JobSet", "one")
        await team.wait_until_exists("JobSet", "one")
        assert await images(team) == dict.fromkeys(("one", "two"), "trainer:1")
        for name in ("one", "two"):
            await team.delete("TrainJob", name)
        await wait_for_revisions(team)
    assert first


async def test_job_of_an_earlier_release_records_no_revision(
    plane: ControlPlane, team: Team
) -> None:
    await team.create_runtime()
    async with fast(plane.kubeconfig, team) as manager:
        await team.create_job(suspend=True)
        name = await wait_until_recorded(team, [JOB])
        await manager.stop()
        await team.patch("TrainJob", JOB, {"status": {"runtimeRevision": None}}, "/status")
        await team.delete(KIND, name)
        before = await team.get("TrainJob")
        manager.start()
        await wait_until_started(manager, 2)
        await team.wait_until_reconciled(manager, JOB, 1)
        assert await team.get("TrainJob") == before
        assert await team.all(KIND) == []


async def test_diff_runtime_prints_what_has_changed(plane: ControlPlane, team: Team) -> None:
    async def diff(*arguments: str) -> tuple[int, str, str]:
        flags = ("-n", team.namespace, "--kubeconfig", str(plane.kubeconfig))
        process = await asyncio.create_subprocess_exec(
            *KFTRAINER,
            "diff-runtime",
            *arguments,
            *flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    await team.create_runtime()
    async with fast(plane.kubeconfig, team):
        await team.create_job(suspend=True)
        name = await wait_until_recorded(team, [JOB])
        assert await diff(JOB) == (0, "", "")
        await edit(team)
        code, out, _ = await diff(JOB)
        lines = out.splitlines()
        key = f"{team.namespace}/torch"
        assert code == 1
        assert lines[0] == f"--- ControllerRevision {team.namespace}/{name}"
        assert lines[1] == f"+++ TrainingRuntime {key} now"
        changed = [each.strip("+- ") for each in lines[3:] if each[0] in "+-"]
        assert changed == ["image: trainer:1", "image: trainer:2"]
        await delete_runtime(team)
        code, out, _ = await diff(JOB)
        assert (code, out.splitlines()[1]) == (1, f"+++ TrainingRuntime {key} (deleted)")
        code, out, err = await diff("missing")
        assert (code, out) == (2, "")
        assert err.startswith(f"kftrainer diff-runtime: cannot read TrainJob {team.namespace}/miss")
