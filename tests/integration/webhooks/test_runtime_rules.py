"""Every rule about runtimes, of both kinds: when they are created, and when they are changed."""

import pytest

from tests.integration.webhooks.cases import (
    KINDS,
    RuntimeCase,
    expected,
    merge_patch,
    placed,
)
from tests.integration.webhooks.runtime_cases import RUNTIME_CASES
from tests.support.objects import Object
from tests.support.webhooks import Applicant, Heard

pytestmark = pytest.mark.integration


def check_wrong(case: RuntimeCase, manifest: Object, heard: Heard) -> None:
    """Whether it is told, in these words and no others."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    says = expected(case.says, kind, name).replace("<kind>", kind)
    if case.is_warning:
        assert (heard.message, heard.warnings) == ("", [says])
    else:
        assert heard.denial == says
        assert (heard.status, heard.body["reason"]) == (403, "Forbidden")
        [cause] = heard.body["details"]["causes"]
        assert cause["message"] == says
        assert says.startswith(f"{cause['field']}: ")


def check_right(heard: Heard) -> None:
    """Whether nothing is told."""
    assert (heard.message, heard.warnings) == ("", [])


@pytest.mark.parametrize("case", RUNTIME_CASES, ids=str)
async def test_a_runtime_is_created_and_changed(
    case: RuntimeCase, person: Applicant, namespace: str
) -> None:
    for kind in KINDS:
        await check_case(case, kind, person, namespace)


async def check_case(case: RuntimeCase, kind: str, person: Applicant, namespace: str) -> None:
    """Write the right and the wrong one in every way."""
    right, wrong = (placed(each, kind, namespace, namespace) for each in (case.right, case.wrong))
    check_wrong(case, wrong, await person.create(wrong, dry_run=True))
    if not case.is_warning:
        check_wrong(case, wrong, await person.create(wrong))
    assert await person.get(wrong) is None
    check_right(await person.create(right, dry_run=True))
    created = await person.apply(right)
    check_right(created)
    for heard in (
        await person.apply(wrong, dry_run=True),
        await person.replace({**created.body, **_changed(wrong, created)}, dry_run=True),
        await person.patch(wrong, merge_patch(right, wrong), dry_run=True),
    ):
        check_wrong(case, wrong, heard)
    if not case.is_warning:
        check_wrong(case, wrong, await person.apply(wrong))
    assert await person.get(right) == created.body


def _changed(manifest: Object, stored: Heard) -> Object:
    """What to put into the stored object instead of what is there."""
    metadata = {**stored.body["metadata"], "labels": manifest["metadata"]["labels"]}
    return {"metadata": metadata, "spec": manifest["spec"]}
