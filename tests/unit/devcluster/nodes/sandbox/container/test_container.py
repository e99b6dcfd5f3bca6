from dataclasses import replace

import pytest

from kftrainer.devcluster.nodes.sandbox.container.container import environment, shim_spec
from kftrainer.devcluster.nodes.sandbox.protocol import (
    ContainerSpec,
    ContainerStartError,
    Image,
    Mount,
)

IMAGE = Image(["/a", "/b"], env={"X": "image", "Y": "image"})
SPEC = ContainerSpec("c", "pod", ["true"], {"X": "pod"}, "", [], IMAGE, "/log")


def test_variables_of_the_container_override_those_of_the_image() -> None:
    assert environment(SPEC) == {"PATH": "/a:/b", "HOME": "/root", "X": "pod", "Y": "image"}


@pytest.mark.parametrize(("user", "home"), [(None, "/root"), (0, "/root"), (1000, "/")])
def test_home_folder_of_a_user(user: int | None, home: str) -> None:
    assert environment(replace(SPEC, user=user))["HOME"] == home


def test_defaults_of_a_container() -> None:
    spec = shim_spec(SPEC, "/root-folder", [])
    del spec["steps"], spec["env"]
    assert spec == {
        "argv": ["true"],
        "cwd": "/",
        "group": 0,
        "log": "/log",
        "root": "/root-folder",
        "user": 0,
    }


def test_a_mount_that_is_not_possible_is_an_error_of_the_start() -> None:
    with pytest.raises(ContainerStartError) as raised:
        shim_spec(replace(SPEC, mounts=[Mount("/x", "/nope")]), "/root-folder", [])
    assert raised.value.reason == "StartError"
