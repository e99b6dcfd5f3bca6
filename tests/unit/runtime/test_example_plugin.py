"""The example of a third-party plugin, installed as a package of its own, and run and refused."""

import json
import re
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from kftrainer.runtime.framework.extension_points import EXTENSION_POINTS
from kftrainer.runtime.framework.plugin_loader import GROUP
from kftrainer.runtime.plugins import PLUGINS
from tests.support import doc_snippets
from tests.support.example_plugin import EXAMPLE, MODULE, PYPROJECT, environment, install
from tests.support.objects import Object, runtime, train_job

ROOT = Path(__file__).parents[3]
LABEL = "acme.com/experiment"
PLUGIN = "acme-tracking"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip has installed the example into."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    install(source, target)
    return target


@pytest.fixture
def changed(installed: Path, tmp_path: Path) -> Path:
    """The same as `installed`, to be broken by one test."""
    return shutil.copytree(installed, tmp_path / "changed")


class Render:
    """`kftrainer render` in a process of its own, with what is in a folder installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, *documents: Object, packages: Path, plugin: str = PLUGIN
    ) -> subprocess.CompletedProcess[str]:
        configuration = {
            "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
            "kind": "Configuration",
            "plugins": {"enabled": [plugin]},
        }
        files = {"config.yaml": [configuration], "documents.yaml": documents}
        for name, content in files.items():
            (self._folder / name).write_text(yaml.safe_dump_all(content))
        command = ["render", "--config", "config.yaml", "-f", "documents.yaml"]
        return subprocess.run(
            [sys.executable, "-m", "kftrainer.cli.main", *command],
            cwd=self._folder,
            env=environment(packages),
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def render(tmp_path: Path) -> Render:
    return Render(tmp_path)


def documents(**labels: str) -> list[Object]:
    """A TrainJob with these labels and an environment of its own, and its runtime."""
    env = [{"name": "SEED", "value": "7"}]
    job = train_job("ada", runtimeRef={"name": "plain"}, trainer={"env": env, "numNodes": 3})
    job["metadata"] |= {"namespace": "team", "uid": "1", "labels": labels}
    return [job, runtime("plain", kind="ClusterTrainingRuntime", mlPolicy={"numNodes": 1})]


def test_documented_example_is_current() -> None:
    shown = (ROOT / "docs" / "plugins.md").read_text()
    texts = [(EXAMPLE / name).read_text() for name in (PYPROJECT, MODULE)]
    assert [text in shown for text in texts] == [True, True]
    assert sum(len(text.splitlines()) for text in texts) < 85


def test_example_imports_only_the_facade() -> None:
    lines = (EXAMPLE / MODULE).read_text().splitlines()
    imports = [each for each in lines if each.startswith(("import ", "from "))]
    assert [each.partition(" import ")[0] for each in imports] == [
        "from kftrainer",
        "from kftrainer.plugin",
    ]
    assert imports[0] == "from kftrainer import plugin"


def test_greeter_imports_only_the_facade() -> None:
    lines = (ROOT / "examples" / "greeter.py").read_text().splitlines()
    imports = [each for each in lines if each.startswith(("import ", "from "))]
    assert imports[:2] == ["import asyncio", "from kftrainer import machinery"]
    assert [each.partition(" import ")[0] for each in imports[2:]] == ["from kftrainer.machinery"]


def test_documented_order_of_phases_and_plugins_is_current() -> None:
    shown = (ROOT / "docs" / "plugins.md").read_text()
    table = re.findall(r"^\|[ 1-5]*\| `(\w+)` \| `(\w+)\((.*)\)` \|", shown, re.M)
    methods = [(phase, *phase.__abstractmethods__) for phase in EXTENSION_POINTS]
    assert table == [
        (phase.__name__, method, ", ".join([*signature(getattr(phase, method)).parameters][1:]))
        for phase, method in methods
    ]
    assert ", ".join(f"`{plugin.name}`" for plugin in PLUGINS) in shown


def test_documented_test_passes(installed: Path, tmp_path: Path) -> None:
    doc_snippets.write("plugins.md", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment(installed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_documented_configuration_enables_the_example(installed: Path, tmp_path: Path) -> None:
    doc_snippets.write("plugins.md", tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(documents(**{LABEL: "llm"})))
    command = ["render", "--config", "config.yaml", "-f", "job.yaml", "--explain"]
    done = subprocess.run(
        [sys.executable, "-m", "kftrainer.cli.main", *command],
        cwd=tmp_path,
        env=environment(installed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"acme-tracking ← metadata.labels[{LABEL}]" in done.stdout, done.stderr


def test_the_example_has_its_turn_when_a_train_job_is_rendered(
    render: Render, installed: Path
) -> None:
    done = render(*documents(**{LABEL: "llm"}), packages=installed)
    assert (done.returncode, done.stderr) == (0, "")
    card, jobset = yaml.safe_load_all(done.stdout)
    assert (card["kind"], card["metadata"]["name"], card["metadata"]["labels"], card["data"]) == (
        "ConfigMap",
        "ada-run",
        {LABEL: "llm"},
        {"runtime": "plain", "nodes": "3"},
    )
    [job] = jobset["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "MLFLOW_RUN_NAME": "ada",
        "MLFLOW_EXPERIMENT_NAME": "llm",
        "SEED": "7",
    }


def test_variable_of_the_example_cannot_be_set_by_the_train_job(
    render: Render, installed: Path
) -> None:
    job, plain = documents(**{LABEL: "llm"})
    job["spec"]["trainer"]["env"].append({"name": "MLFLOW_RUN_NAME", "value": "mine"})
    done = render(job, plain, packages=installed)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "must not have reserved envs, invalid envs configured: [MLFLOW_RUN_NAME]\n"
    )


def test_train_job_violating_the_rule_of_the_example_is_rejected(
    render: Render, installed: Path
) -> None:
    done = render(*documents(), packages=installed)
    message = f"metadata.labels[{LABEL}]: Required value: the experiment that this is a run of"
    assert message in done.stderr


def annotated(value: str) -> list[Object]:
    """A TrainJob with the label, and a runtime with this value of the example's annotation."""
    job, plain = documents(**{LABEL: "llm"})
    plain["metadata"]["annotations"] = {"acme.com/tracking": value}
    return [job, plain]


def test_settings_of_the_example_are_read_from_the_runtime(render: Render, installed: Path) -> None:
    done = render(*annotated('{"server": "http://mlflow.acme.com"}'), packages=installed)
    assert (done.returncode, done.stderr) == (0, "")
    _, jobset = yaml.safe_load_all(done.stdout)
    [job] = jobset["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "MLFLOW_TRACKING_URI", "value": "http://mlflow.acme.com"} in container["env"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("http://mlflow.acme.com", "is not valid JSON"),
        ("{}", "server: is required"),
        ('{"server": 7}', "server: must be a string"),
        ('{"server": "", "sever": ""}', "sever: is not a known field"),
    ],
)
def test_invalid_settings_of_the_example_are_an_error_of_the_runtime(
    render: Render, installed: Path, value: str, message: str
) -> None:
    done = render(*annotated(value), packages=installed)
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert "metadata.annotations[acme.com/tracking]" in line
    assert message in line


def listed(installed: Path, folder: Path, *options: str) -> str:
    """The output of `kftrainer plugins` where the example is installed."""
    done = subprocess.run(
        [sys.executable, "-m", "kftrainer.cli.main", "plugins", *options],
        cwd=folder,
        env=environment(installed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_example_is_listed_with_its_version_and_permissions(
    installed: Path, tmp_path: Path
) -> None:
    doc_snippets.write("plugins.md", tmp_path)
    found = json.loads(listed(installed, tmp_path, "--config", "config.yaml", "--output", "json"))
    [example] = [each for each in found if each["name"] == PLUGIN]
    assert example == {
        "name": PLUGIN,
        "state": "enabled",
        "package": "acme-tracking",
        "version": "1.0",
        "phases": [
            "EnforceMLPolicy",
            "ComponentBuilder",
            "CustomValidation",
            "PolicyExtension",
            "RBACExtension",
        ],
        "policy": "metadata.annotations[acme.com/tracking]",
        "watches": [],
        "rbacRules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "verbs": ["get", "list", "watch", "create", "patch"],
            }
        ],
    }
    assert [each["name"] for each in found if each["state"] == "disabled"] == ["Volcano"]


def test_example_is_listed_as_installed_if_it_is_not_enabled(
    installed: Path, tmp_path: Path
) -> None:
    lines = [line.split() for line in listed(installed, tmp_path).splitlines()]
    assert [PLUGIN, "installed", "acme-tracking", "1.0", "-", "-"] in lines


# Mistakes of users, and the messages of the command.
BREAKAGES = {
    "import": ("from kftrainer.plugin", "from kftrainer.plugni", "cannot be imported: Module"),
    "exit": ('LABEL = "', 'raise SystemExit(0)\nLABEL = "', "cannot be imported: SystemExit: 0"),
    "arguments": (
        "    def enforce_ml",
        "    def __init__(self, url: str) -> None: ...\n\n    def enforce_ml",
        "cannot be created: TypeError: Tracking.__init__() missing 1 required positional argument",
    ),
    "missing method": (
        "def build_components",
        "def build_component",
        "cannot be used: it has no method build_components",
    ),
    "signature": (
        "enforce_ml_policy(self, info: Info, job: TrainJob)",
        "enforce_ml_policy(self, info: Info)",
        "cannot be used: enforce_ml_policy must take (info, job), as in EnforceMLPolicy",
    ),
    "second status": (
        "    def validate_train_job",
        "    def observe_status(self, job, existing): ...\n\n    def validate_train_job",
        "too many TrainJobStatus plugins are registered: JobSet, acme-tracking",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BREAKAGES.values(), ids=BREAKAGES)
def test_the_example_is_refused_in_one_line_when_it_is_broken(
    render: Render, changed: Path, old: str, new: str, message: str
) -> None:
    whole = (changed / MODULE).read_text()
    assert old in whole
    (changed / MODULE).write_text(whole.replace(old, new))
    done = render(*documents(**{LABEL: "llm"}), packages=changed)
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout, message in line) == (1, "", True), line


def test_plugin_that_is_not_installed_is_refused(render: Render, installed: Path) -> None:
    absent = f"acme-{uuid4()}"  # whatever is installed where the tests run
    done = render(*documents(**{LABEL: "llm"}), packages=installed, plugin=absent)
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no installed package declares it as an entry point of {GROUP}" in line


def test_failure_of_the_example_contains_its_name(render: Render, changed: Path) -> None:
    whole = (changed / MODULE).read_text()
    (changed / MODULE).write_text(whole.replace("info.num_nodes(job)", "info.nodes"))
    done = render(*documents(**{LABEL: "llm"}), packages=changed)
    [line] = done.stderr.splitlines()
    message = "plugin acme-tracking failed: AttributeError: 'Info' object has no attribute 'nodes'"
    assert (done.returncode, done.stdout, message in line) == (1, "", True), line
