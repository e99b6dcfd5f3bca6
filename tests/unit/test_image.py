"""The image: checks without a build, and, if enabled, the build itself."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from image import check, contents, finish, recipe
from image.recipe import Recipe

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = Recipe(tag="there:1", epoch=1_700_000_000, version="1.2.3", revision="abc")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with what follows, each in one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    words = (line.split(None, 1) for line in lines if line.strip())
    return [(word, " ".join(rest.split())) for word, rest in words]


def directives(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def sources() -> Iterator[str]:
    """What the Dockerfile takes from the project."""
    for rest in directives("COPY"):
        if not rest.startswith("--from="):
            yield from rest.split()[:-1]
    for rest in directives("RUN"):
        yield from re.findall(r"--mount=type=bind,source=(\S+?),", rest)


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets this file through: the last line that is about it decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not pattern or pattern.startswith("#"):
            continue
        parents = [path, *map(str, Path(path).parents)]
        if line.startswith("**/"):
            parents = [Path(each).name for each in parents]
        if any(fnmatch(each, pattern) for each in parents if each != "."):
            sent = line.startswith("!")
    return sent


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    copied = list(sources())
    assert {"requirements.lock", "requirements-build.lock", "pyproject.toml", "src"} < set(copied)
    for source in copied:
        path = ROOT / source
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        kept = [each for each in files if each.is_file() and is_sent(str(each.relative_to(ROOT)))]
        assert kept, f"{source} is not there, or ignored"
    assert is_sent("src/kftrainer/api/crds/trainjobs.trainer.kubeflow.org.yaml")
    assert is_sent("hack/image/finish.py")


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "src/kftrainer/__pycache__/logs.cpython-313.pyc",
        "src/notes.txt",
        "hack/image/check.py",
        "requirements-dev.lock",
        "tests/conftest.py",
    ],
)
def test_nothing_else_is_sent(path: str) -> None:
    assert not is_sent(path)


def test_files_of_the_wheel_are_copied() -> None:
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= set(sources())


def test_the_images_below_are_arguments_that_name_a_version() -> None:
    arguments = dict(rest.partition("=")[::2] for rest in directives("ARG"))
    assert [rest.split()[0] for rest in directives("FROM")] == ["${BUILD_IMAGE}", "${BASE_IMAGE}"]
    assert arguments["BUILD_IMAGE"] == "${BASE_IMAGE}"
    _, colon, tag = arguments["BASE_IMAGE"].rpartition(":")
    assert colon
    assert tag != "latest"
    assert arguments["SOURCE_DATE_EPOCH"] == str(recipe.DEFAULT_EPOCH)


def test_its_python_is_new_enough() -> None:
    [base] = [rest for rest in directives("ARG") if rest.startswith("BASE_IMAGE=")]
    [version] = re.findall(r"python:(\d+)\.(\d+)-", base)
    [wanted] = re.findall(r">=(\d+)\.(\d+)", PROJECT["requires-python"])
    assert tuple(map(int, version)) >= tuple(map(int, wanted))


def test_image_runs_the_command_as_a_numeric_user() -> None:
    [entry] = directives("ENTRYPOINT")
    [program] = json.loads(entry)
    assert program in PROJECT["scripts"]
    # Each stage is built as root, whoever the user of its base is.
    root, nobody = "0:0", f"{finish.USER}:{finish.USER}"
    assert directives("USER") == [root, root, nobody]
    words = instructions()
    assert [words[at + 1] for at, (word, _) in enumerate(words) if word == "FROM"] == [
        ("USER", root)
    ] * 2
    last = words.index(("USER", nobody))
    after = [word for word, _ in words[last:]]
    assert not {"RUN", "COPY", "ADD"} & set(after)
    subprocess.run(
        [sys.executable, "-m", "kftrainer.cli.main", *json.loads(directives("CMD")[0]), "--help"],
        check=True,
        capture_output=True,
    )


def test_health_check_fails_when_the_server_is_unreachable() -> None:
    [health] = directives("HEALTHCHECK")
    [*_, code] = json.loads(health[health.index("[") :])
    done = subprocess.run(
        [sys.executable, "-c", code.replace("8081", "1")], check=False, capture_output=True
    )
    assert b"ConnectionRefusedError" in done.stderr
    assert done.returncode == 1


def test_only_locked_packages_are_installed() -> None:
    steps = [rest for rest in directives("RUN") if " install " in rest or " wheel " in rest]
    installing = [part for rest in steps for part in rest.split("&&") if "bin/pip" in part]
    assert len(installing) == 4
    for part in installing:
        assert "--require-hashes" in part or "--no-index" in part, part


def test_the_build_lock_is_a_part_of_the_development_lock() -> None:
    whole = (ROOT / "requirements-dev.lock").read_text()
    for pinned in re.split(r"\n(?=\S)", (ROOT / "requirements-build.lock").read_text().strip()):
        assert pinned in whole, "run `make lock`"


def test_nothing_of_an_index_is_in_the_dockerfile() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"index-url|INDEX_URL|https?://(?!127)|trusted-host", text)


def test_docker_takes_the_time_from_an_argument_and_others_from_a_flag() -> None:
    docker, podman = (recipe.command(engine, RECIPE) for engine in ("docker", "podman"))
    assert "--timestamp" not in docker
    assert "SOURCE_DATE_EPOCH=1700000000" in docker
    assert "CREATED=2023-11-14T22:13:20+00:00" in docker
    assert podman[podman.index("--timestamp") + 1] == "1700000000"
    assert not [each for each in docker if "IMAGE=" in each or each == "--secret"]


def test_every_build_argument_is_the_dockerfiles() -> None:
    known = {rest.partition("=")[0] for rest in directives("ARG")}
    full = Recipe("t", 0, "1", "r", base_image="b", build_image="c")
    assert {name for name, _ in full.build_arguments()} == known


def test_secrets_are_those_that_the_dockerfile_mounts(tmp_path: Path) -> None:
    full = Recipe("t", 0, "1", "r", pip_conf=tmp_path / "a", ca=tmp_path / "b")
    given = [each for each in recipe.command("buildah", full) if each.startswith("id=")]
    mounted = re.findall(r"type=secret,id=([^,]+)", (ROOT / "Dockerfile").read_text())
    assert [each.split(",")[0].removeprefix("id=") for each in given] == mounted


def test_source_date_epoch_is_read_from_the_environment() -> None:
    assert recipe.epoch({"SOURCE_DATE_EPOCH": "17"}) == 17


def test_only_package_installers_are_removed(tmp_path: Path) -> None:
    library, scripts = tmp_path / "lib", tmp_path / "bin"
    wheels = tmp_path / finish.DEBIAN_WHEELS
    is_deleted = [
        *(library / "pip" / "x.py", library / "pip-25.0.dist-info" / "RECORD"),
        *(library / "setuptools" / "x.py", library / "ensurepip" / "x.py"),
        *(scripts / "pip", scripts / "pip3.13", wheels / "pip-25.whl"),
    ]
    kept = [library / "pipes.py", library / "json" / "x.py", scripts / "python3"]
    for file in is_deleted + kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    finish.remove(finish.leftovers([library], scripts, tmp_path))
    assert not [file for file in is_deleted if file.exists()]
    assert [file for file in kept if file.exists()] == kept


def test_findings_name_unwanted_files(tmp_path: Path) -> None:
    ours = tmp_path / contents.PREFIX
    ours.mkdir(parents=True)
    for name, mode in (("gcc", 0o755), ("pip", 0o644), ("open", 0o666), ("su", 0o4755)):
        (ours / name).touch()
        (ours / name).chmod(mode)
    message = "; ".join(contents.problems(tmp_path, epoch=0))
    for each in ("gcc is a compiler", "pip installs", "open can be written", "su changes the user"):
        assert f"/{contents.PREFIX}/{each}" in message
    assert "open is younger than 0" in message


def test_the_image_is_built_looked_into_and_run() -> None:
    if os.environ.get("KFTRAINER_IMAGE_TEST") != "1":
        pytest.skip("KFTRAINER_IMAGE_TEST=1 has it built, which takes minutes")
    if reason := check.missing():
        pytest.skip(reason)
    given = {"--pip-conf": "KFTRAINER_PIP_CONF", "--ca": "KFTRAINER_CA"}
    flags = [
        part
        for flag, name in given.items()
        if name in os.environ
        for part in (flag, os.environ[name])
    ]
    assert check.main(flags) == 0
