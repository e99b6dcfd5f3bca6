from collections.abc import Sequence
from itertools import pairwise

import pytest

from kftrainer.devcluster.nodes.sandbox.container.mounts import Kind, PlanError, Step, plan
from kftrainer.devcluster.nodes.sandbox.protocol import Mount


class FakeHost:
    """A file system: folders end with a slash, links have a target."""

    def __init__(self, *paths: str, **links: str) -> None:
        self._links = {path.replace("__", "/"): target for path, target in links.items()}
        self._paths = {"/": "folder"}
        for path in [*paths, *self._links]:
            parts = path.strip("/").split("/")
            for count in range(1, len(parts)):
                self._paths["/" + "/".join(parts[:count])] = "folder"
            self._paths["/" + "/".join(parts)] = "folder" if path.endswith("/") else "file"

    def kind(self, path: str) -> Kind:
        if path.strip("/") in self._links:
            return "link"
        found: str = self._paths.get(path, "")
        assert found in {"folder", "file", ""}
        return found  # type: ignore[return-value]

    def target(self, path: str) -> str:
        return self._links[path.strip("/")]

    def names(self, path: str) -> Sequence[str]:
        prefix = path.rstrip("/") + "/"
        return sorted(
            {each[len(prefix) :].split("/")[0] for each in self._paths if each.startswith(prefix)}
            - {""}
        )


HOST = FakeHost(
    "/etc/hosts", "/etc/ssl/cert", "/usr/bin/env", "/var/log/", "/root/.venv/bin/python",
    "/volume/", "/volumes/file", "/srv/home/secret", "/dev/null", "/proc/", "/sys/", "/tmp/",
    "/a-file", bin="usr/bin", var__run="/run", etc__mtab="../proc/mounts",
)  # fmt: skip


def steps(*mounts: Mount, **options: object) -> list[Step]:
    return plan(HOST, mounts, **options)  # type: ignore[arg-type]


def added(*mounts: Mount, **options: object) -> list[Step]:
    """Return the steps that the mounts add to those of a container without mounts."""
    base = steps()
    return [step for step in steps(*mounts, **options) if step not in base]


def test_folders_of_the_host_are_bound_read_only_and_links_copied() -> None:
    planned = steps()
    start = planned.index(("folder", "/etc", "755"))
    assert planned[start : start + 3] == [
        ("folder", "/etc", "755"),
        ("bind", "/etc", "/etc"),
        ("read_only", "/etc"),
    ]
    assert ("link", "/bin", "usr/bin") in planned
    assert not [step for step in planned if step[1] == "/a-file"]


def test_private_folders_are_empty_and_writable() -> None:
    planned = steps()
    assert [step for step in planned if step[1].startswith(("/root", "/home", "/tmp", "/run"))] == [
        ("folder", "/home", "755"),
        ("folder", "/root", "700"),
        ("folder", "/run", "755"),
        ("folder", "/run/lock", "1777"),
        ("folder", "/tmp", "1777"),
    ]
    # /var is read-only and has no folder tmp: it is replaced.
    assert [step for step in planned if step[1].startswith("/var")] == [
        ("folder", "/var", "755"),
        ("folder", "/var/log", "755"),
        ("bind", "/var/log", "/var/log"),
        ("read_only", "/var/log"),
        ("link", "/var/run", "/run"),
        ("folder", "/var/tmp", "1777"),
    ]


def test_devices_and_special_file_systems() -> None:
    planned = steps()
    assert {("proc", "/proc"), ("sysfs", "/sys"), ("devpts", "/dev/pts")} <= set(planned)
    assert ("tmpfs", "/dev/shm", "1777", "64m") in planned
    assert planned.index(("file", "/dev/null")) < planned.index(("bind", "/dev/null", "/dev/null"))
    assert ("read_only", "/dev/null") not in planned


def test_a_mount_on_an_existing_path_of_the_host_needs_no_mount_point() -> None:
    assert added(Mount("/etc/hosts", "/volumes/file")) == [("bind", "/etc/hosts", "/volumes/file")]


def test_a_mount_below_a_folder_of_the_host_replaces_the_folder() -> None:
    planned = [
        step for step in steps(Mount("/etc/mpi", "/volume", read_only=True)) if "/etc" in step[1]
    ]
    assert planned == [
        ("folder", "/etc", "755"),
        ("file", "/etc/hosts"),
        ("bind", "/etc/hosts", "/etc/hosts"),
        ("read_only", "/etc/hosts"),
        ("folder", "/etc/mpi", "755"),
        ("bind", "/etc/mpi", "/volume"),
        ("read_only", "/etc/mpi"),
        ("link", "/etc/mtab", "../proc/mounts"),
        ("folder", "/etc/ssl", "755"),
        ("bind", "/etc/ssl", "/etc/ssl"),
        ("read_only", "/etc/ssl"),
    ]


def test_a_mount_in_a_nested_folder_of_the_host_replaces_only_that_folder() -> None:
    planned = steps(Mount("/usr/bin/tool", "/volumes/file"))
    assert [step for step in planned if step[1].startswith("/usr")] == [
        ("folder", "/usr", "755"),
        ("bind", "/usr", "/usr"),
        ("read_only", "/usr"),
        ("tmpfs", "/usr/bin", "755", ""),
        ("file", "/usr/bin/env"),
        ("bind", "/usr/bin/env", "/usr/bin/env"),
        ("read_only", "/usr/bin/env"),
        ("file", "/usr/bin/tool"),
        ("bind", "/usr/bin/tool", "/volumes/file"),
    ]


def test_links_of_the_host_lead_to_the_place_of_a_mount() -> None:
    assert added(Mount("/var/run/secrets/token", "/volumes/file")) == [
        ("folder", "/run/secrets", "755"),
        ("file", "/run/secrets/token"),
        ("bind", "/run/secrets/token", "/volumes/file"),
    ]


def test_mount_points_in_a_read_only_mount_are_created_before_it_becomes_read_only() -> None:
    mounts = [
        Mount("/data/a/b", "/volumes/file"),
        Mount("/data", "/volume", read_only=True),
        Mount("/data/c", None, size="1m"),
    ]
    assert added(*mounts) == [
        ("folder", "/data", "755"),
        ("bind", "/data", "/volume"),
        ("folder", "/data/c", "755"),
        ("folder", "/data/a", "755"),
        ("file", "/data/a/b"),
        ("read_only", "/data"),
        ("bind", "/data/a/b", "/volumes/file"),
        ("tmpfs", "/data/c", "1777", "1m"),
    ]


def test_exposed_folders_are_bound_only_where_they_would_be_hidden() -> None:
    assert added(expose=["/root/.venv", "/usr"]) == [
        ("folder", "/root/.venv", "755"),
        ("bind", "/root/.venv", "/root/.venv"),
        ("read_only", "/root/.venv"),
    ]


def test_an_exposed_folder_stays_visible_in_a_volume_at_the_home_folder() -> None:
    assert added(Mount("/root", "/volume"), expose=["/root/.venv"]) == [
        ("folder", "/root", "755"),
        ("bind", "/root", "/volume"),
        ("folder", "/root/.venv", "755"),
        ("bind", "/root/.venv", "/root/.venv"),
        ("read_only", "/root/.venv"),
    ]


def test_hidden_folders_are_empty_also_below_folders_of_the_host() -> None:
    assert added(hidden=["/srv/home", "/root", "/nope"]) == [("tmpfs", "/srv/home", "700", "")]


def test_a_missing_working_folder_is_created_and_an_existing_one_kept() -> None:
    assert added(cwd="/workspace/a") == [
        ("folder", "/workspace", "755"),
        ("folder", "/workspace/a", "755"),
    ]
    assert added(cwd="/usr/bin") == []
    assert added(Mount("/data", "/volume"), cwd="/data/new") == added(Mount("/data", "/volume"))


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        (Mount("/", "/volume"), "/: cannot be the root folder"),
        (Mount("/..", "/volume"), "/..: cannot be the root folder"),
        (Mount("/proc/x", "/volume"), "/proc/x: is not in a folder that can contain mounts"),
        (Mount("/etc/hosts/x", "/volume"), "/etc/hosts/x: /etc/hosts is not a folder"),
        (
            Mount("/data", "/nope"),
            "error mounting '/nope' to '/data': stat /nope: no such file or directory",
        ),
    ],
)
def test_impossible_mounts(mount: Mount, message: str) -> None:
    with pytest.raises(PlanError) as raised:
        steps(mount)
    assert str(raised.value) == message


def test_circular_links_are_an_error() -> None:
    host = FakeHost("/volume/", a="b", b="a")
    for mount in (Mount("/a/x", "/volume"), Mount("/x", "/a")):
        with pytest.raises(PlanError, match="too many levels of symbolic links"):
            plan(host, [mount])


def test_a_large_folder_is_not_replaced() -> None:
    host = FakeHost("/volume/", *[f"/etc/{n}" for n in range(5000)])
    with pytest.raises(PlanError, match="/etc has more than 4096 entries"):
        plan(host, [Mount("/etc/x", "/volume")])


def test_every_folder_is_created_before_its_content() -> None:
    created = [step[1] for step in steps(Mount("/etc/a/b/c", "/volume")) if step[0] == "folder"]
    assert all(not before.startswith(f"{after}/") for before, after in pairwise(created))
