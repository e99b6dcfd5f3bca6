import errno
import subprocess

import pytest

from kftrainer.devcluster.nodes.sandbox import namespaces
from kftrainer.devcluster.nodes.sandbox.namespaces import explain, unavailable

DENIED = OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize(
    ("error", "settings", "words"),
    [
        (DENIED, {"kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"),
        (DENIED, {"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone=1"),
        (DENIED, {"user/max_user_namespaces": "0"}, "max_user_namespaces=10000"),
        (DENIED, {"user/max_user_namespaces": "100"}, "container runtime"),
        (OSError(errno.ENOSYS, "Function not implemented"), {}, "Linux 5.12"),
        (OSError(errno.ENOSPC, "No space left on device"), {}, "limit"),
    ],
)
def test_the_reason_why_namespaces_are_unavailable(
    error: OSError, settings: dict[str, str], words: str
) -> None:
    sentence = explain(error, settings)
    assert words in sentence
    assert sentence.endswith(".")


def test_other_systems_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces.sys, "platform", "darwin")
    assert unavailable() == "Processes as pods require the namespaces of Linux."


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "", None),
        (1, "The reason.\n", "The reason."),
        (2, "", "The check of namespaces failed: e"),
    ],
)
def test_the_result_of_the_check(
    monkeypatch: pytest.MonkeyPatch, code: int, output: str, expected: str | None
) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, output, "e\n")

    monkeypatch.setattr(namespaces.sys, "platform", "linux")
    monkeypatch.setattr(namespaces.subprocess, "run", run)
    assert unavailable() == expected
