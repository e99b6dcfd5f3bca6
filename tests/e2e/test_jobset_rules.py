"""Our rules about JobSets are JobSet's: its webhook refuses what they name, and nothing else."""

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice, product
from typing import Any

import pytest_asyncio

from kftrainer.api.resources import JOB_SETS
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import InvalidError
from kftrainer.runtime.jobset_rules import refusals
from tests.support.informers import connected
from tests.support.jobsets import (
    ADMITTED,
    REFUSED,
    Case,
    after,
    claims,
    job,
    mounting,
    rule,
    spec_of,
)


@pytest_asyncio.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with connected(control_plane.kubeconfig) as client:
        yield client


async def said_by_jobset(client: Client, namespace: str, case: Case) -> list[str]:
    """Each reason of JobSet's, or of its CRD, to refuse the JobSet."""
    manifest = {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {"name": case.name, "namespace": namespace},
        "spec": case.spec,
    }
    try:
        await client.create(JOB_SETS, manifest, dry_run=True)
    except InvalidError as error:
        return [cause.message for cause in error.causes] or [str(error)]
    return []


def disagreements(ours: Iterable[str], theirs: list[str]) -> list[str]:
    """Reasons that only one of the two gives: JobSet's have the offending value before them."""
    texts = set(ours)
    return [
        *(f"only we say: {text}" for text in texts if not any(text in each for each in theirs)),
        *(
            f"only JobSet says: {each}"
            for each in theirs
            if not any(each.endswith(text) for text in texts)
        ),
    ]


async def differences(
    client: Client, namespace: str, cases: Iterable[Case]
) -> dict[str, list[str]]:
    """By case, what our rules and JobSet do not agree on."""
    found = {}
    for case in cases:
        ours = [refusal.text for refusal in refusals(case.spec, name=case.name)]
        found[case.what] = disagreements(ours, await said_by_jobset(client, namespace, case))
    return {what: differing for what, differing in found.items() if differing}


async def test_jobset_refuses_what_our_rules_name_for_the_same_reasons(
    client: Client, namespace: str
) -> None:
    assert all([*refusals(case.spec, name=case.name)] for case in REFUSED)
    assert await differences(client, namespace, REFUSED) == {}


async def test_jobset_admits_what_our_rules_let_pass(client: Client, namespace: str) -> None:
    assert not any([*refusals(case.spec, name=case.name)] for case in ADMITTED)
    assert await differences(client, namespace, ADMITTED) == {}


# What can be wrong, to be mixed.
NAMES = ("train", "1-train", "x" * 48, "x" * 60)
JOBS: tuple[list[dict[str, Any]], ...] = (
    [job()],
    [job("a", dependsOn=after("a")), job(replicas=0)],
    [job("node", groupName="G"), job("b", dependsOn=after("node", "c"))],
    [mounting("data", volumes=[{"name": "data"}]), job("B", spec={"completions": None})],
    [job(replicas=3, spec={"completionMode": "NonIndexed"}), job("c", dependsOn=[])],
)
FAILURES: tuple[dict[str, Any] | None, ...] = (
    None,
    {"rules": [rule(name="ü" * 70, targetReplicatedJobs=["node", "b", "zz"])]},
    {"rules": [rule(name=""), rule(name="failurePolicyRule0"), rule(name="a-b")]},
    {"rules": [rule("RestartJob", name="-")], "restartStrategy": "InPlaceRestart"},
    {"rules": [], "restartStrategy": "Recreate"},
    {"maxRestarts": 3},
    {"rules": [rule(onJobFailureReasons=["DeadlineExceeded", ""])]},
)
OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"coordinator": {"replicatedJob": "node", "podIndex": 1}},
    {"coordinator": {"replicatedJob": "b", "jobIndex": -1}, "network": {"subdomain": "S.s"}},
    {"coordinator": {"replicatedJob": "node", "jobIndex": 2}, "network": {"subdomain": "s" * 70}},
    {"managedBy": f"acme.io/{'ü' * 30}"},
    {"managedBy": "/"},
    {"volumeClaimPolicies": claims("data", "Data.1", "data")},
    {"volumeClaimPolicies": claims("", "x" * 260), "network": {"subdomain": "-"}},
    {"successPolicy": {"operator": "Any", "targetReplicatedJobs": ["", "node", "b"]}},
    {"managedBy": "a..b/é c", "startupPolicy": {"startupPolicyOrder": "AnyOrder"}},
    {"volumeClaimPolicies": [{"templates": [{}]}], "coordinator": {"replicatedJob": ""}},
)


def mixtures() -> Iterator[Case]:
    pools = (NAMES, JOBS, FAILURES, OTHERS)
    for which in product(*(range(len(pool)) for pool in pools)):
        name, jobs, failure, others = (
            pool[index] for pool, index in zip(pools, which, strict=True)
        )
        failure_policy = {} if failure is None else {"failurePolicy": failure}
        yield Case(str(which), {**spec_of(*jobs), **failure_policy, **others}, name=name)


async def test_they_agree_on_jobsets_that_are_wrong_in_many_ways(
    client: Client, namespace: str
) -> None:
    some = [*islice(mixtures(), 0, None, 7)]
    assert len(some) == 220
    assert await differences(client, namespace, some) == {}
