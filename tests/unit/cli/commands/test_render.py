"""What `kftrainer render` prints, and its errors for invalid input."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kftrainer.cli.main import main
from tests.support.objects import Object, replicated_job, runtime, train_job
from tests.support.other_releases import UNSERVED, Unserved

ZEROS = "00000000-0000-0000-0000-000000000000"
POD = "template.spec.template.spec"
JOBS = "spec.template.spec.replicatedJobs"


class Command:
    """The command, run on documents that were written to a file."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "documents.yaml"
        self._capture = capture

    def __call__(self, *documents: Any, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        """Exit code, standard output, and standard error with `FILE` for the file's name.

        The documents begin in the lines 1, 3, 5 and so on.
        """
        self.file.write_text("\n---\n".join(map(json.dumps, documents)))
        code = main(["render", "-f", str(self.file), *options])
        out, err = self._capture.readouterr()
        return code, out, err.replace(str(self.file), "FILE")

    def objects(self, *documents: Any, options: tuple[str, ...] = ()) -> list[Object]:
        code, out, err = self(*documents, options=options)
        assert (code, err) == (0, "")
        return list(yaml.safe_load_all(out))

    def as_validated(self) -> list[str]:
        """What `kftrainer validate` prints about the documents of the last run."""
        main(["validate", "-f", str(self.file)])
        return self._capture.readouterr().out.replace(str(self.file), "FILE").splitlines()

    def problems(self, *documents: Any, options: tuple[str, ...] = ()) -> list[str]:
        code, out, err = self(*documents, options=options)
        assert (code, out) == (1, "")
        assert "Traceback" not in err
        return err.splitlines()


@pytest.fixture
def render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


def plain_runtime(jobs: list[Object] | None = None, **spec: Any) -> Object:
    policy = spec.pop("mlPolicy", {"numNodes": 2})
    return runtime("plain", "ClusterTrainingRuntime", jobs, mlPolicy=policy, **spec)


def plain_job(name: str = "demo", **spec: Any) -> Object:
    return train_job(name, runtimeRef={"name": "plain"}, **spec)


def mpi_runtime(**policy: Any) -> Object:
    launcher, node = replicated_job("launcher"), replicated_job("node", None)
    for job in (launcher, node):
        job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    return runtime(
        "plain", "ClusterTrainingRuntime", [launcher, node], mlPolicy={"numNodes": 2, "mpi": policy}
    )


def jobset(name: str, namespace: str = "default", uid: str = ZEROS, **container: Any) -> Object:
    """What comes of `plain_runtime` and `plain_job`."""
    job = replicated_job("node", **container)
    job["template"]["spec"] |= {"parallelism": 2, "completions": 2}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "ownerReferences": [
                {
                    "apiVersion": "trainer.kubeflow.org/v1alpha1",
                    "kind": "TrainJob",
                    "name": name,
                    "uid": uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "replicatedJobs": [{**job, "replicas": 1, "groupName": "default"}],
            "suspend": False,
        },
    }


def test_a_train_job_becomes_a_job_set(render: Command) -> None:
    assert render.objects(plain_runtime(), plain_job()) == [jobset("demo")]


def test_objects_are_ordered_by_train_job_for_any_order_of_documents(render: Command) -> None:
    second = plain_job("second")
    second["metadata"] |= {"namespace": "team", "uid": "1-2-3"}
    found = render.objects(plain_job("third"), second, plain_runtime(), plain_job("first"))
    assert found == [jobset("third"), jobset("second", "team", "1-2-3"), jobset("first")]


def test_a_runtime_without_namespace_is_in_that_of_train_jobs_without(render: Command) -> None:
    own = {**plain_runtime(), "kind": "TrainingRuntime"}
    job = plain_job()
    job["spec"]["runtimeRef"]["kind"] = "TrainingRuntime"
    assert render.objects(own, job) == [jobset("demo")]
    job["metadata"]["namespace"] = "other"
    [problem] = render.problems(own, job)
    assert problem.startswith("FILE:3: spec.runtimeRef: Invalid value: ")
    assert '"plain" not found' in problem


def test_yaml_is_readable_and_in_a_fixed_order(render: Command) -> None:
    command = "python - <<EOF\nprint(1)\nEOF\n"
    job = plain_job(trainer={"command": ["bash", "-c", command], "env": [_env("A", "1e3")]})
    code, out, _ = render(plain_runtime(), job)
    assert code == 0
    assert out.startswith("apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata:\n")
    assert "- |\n                python - <<EOF\n                print(1)\n" in out
    assert "value: '1e3'\n" in out
    assert "&" not in out


def _env(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def test_json_is_one_list(render: Command) -> None:
    documents = (plain_runtime(), plain_job("a"), plain_job("b"))
    code, out, _ = render(*documents, options=("-o", "json"))
    wanted = {"apiVersion": "v1", "kind": "List", "items": [jobset("a"), jobset("b")]}
    assert (code, json.loads(out)) == (0, wanted)


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_two_runs_are_the_same_to_the_byte(render: Command, form: str) -> None:
    documents = (mpi_runtime(), plain_job("a"), plain_job("b"))
    first, second = (render(*documents, options=("-o", form)) for _ in range(2))
    assert first == second
    assert first[0] == 0


def test_output_can_be_parsed_again(render: Command) -> None:
    _, out, _ = render(plain_runtime(), plain_job(trainer={"args": ["1:30", "y", "0644", "~"]}))
    [printed] = yaml.safe_load_all(out)
    assert printed == jobset("demo", args=["1:30", "y", "0644", "~"])


def test_secrets_are_printed_without_data(render: Command) -> None:
    secret, config_map, _ = render.objects(mpi_runtime(), plain_job())
    assert secret["kind"] == "Secret"
    assert list(config_map) == ["apiVersion", "kind", "metadata", "data"]
    assert secret["data"] == {"ssh-privatekey": "<redacted>", "ssh-publickey": "<redacted>"}


def test_secrets_are_shown_on_request(render: Command) -> None:
    secret, *_ = render.objects(mpi_runtime(), plain_job(), options=("--show-secrets",))
    assert list(secret["data"]) == ["ssh-privatekey", "ssh-publickey"]
    assert "<redacted>" not in secret["data"].values()


def test_existing_secret_is_not_modified(render: Command) -> None:
    metadata = {**jobset("demo")["metadata"], "name": "demo-mpi-ssh-auth"}
    existing = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    found = render.objects(mpi_runtime(), existing, plain_job())
    assert [each["kind"] for each in found] == ["ConfigMap", "JobSet"]


def test_unknown_kinds_are_skipped(render: Command) -> None:
    other_objects = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo"}, "spec": "?"},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo"}},
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"},
        {"apiVersion": "x/v1", "kind": "X", "metadata": "text"},
        {"apiVersion": "x/v1", "kind": "X", "metadata": {"generateName": "x-"}},
    ]
    assert render.objects(*other_objects, plain_runtime(), plain_job()) == [jobset("demo")]


def test_running_job_set_needs_no_apply(render: Command) -> None:
    assert render(jobset("demo"), plain_runtime(), plain_job()) == (
        0,
        "",
        "FILE:5: warning: nothing to apply: its JobSet is running already\n",
    )


def test_documents_without_a_train_job_are_an_error(render: Command) -> None:
    message = "warning: the files contain no TrainJob\n"
    assert render(plain_runtime()) == (0, "", message)


def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = yaml.safe_dump_all([plain_runtime(), plain_job()])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["render", "-f", "-"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == jobset("demo")


def test_files_may_be_named_one_by_one_or_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(tmp_path / name) for name in ("runtime.yaml", "a.json", "b.json")]
    for name, document in zip(
        names, [plain_runtime(), plain_job("a"), plain_job("b")], strict=True
    ):
        Path(name).write_text(json.dumps(document))
    assert main(["render", "-f", *names[:2], "-f", names[2]]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [jobset("a"), jobset("b")]


TYPO = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: demo
spec:
  runtimeRef:
    name: plain
  trainer:
    imagee: x
"""


def test_misspelled_field_is_the_same_error_as_of_validate(
    render: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / "job.yaml"), str(tmp_path / "runtime.yaml")]
    Path(files[0]).write_text(TYPO)
    Path(files[1]).write_text(json.dumps(plain_runtime()))
    printed = f"{files[0]}:9: spec.trainer.imagee: Unknown field: did you mean image?\n"
    assert main(["render", "-f", *files]) == 1
    assert capsys.readouterr() == ("", printed)
    assert main(["validate", "-f", *files]) == 1
    assert capsys.readouterr().out == printed


def test_admission_errors_equal_those_of_validate(render: Command) -> None:
    env = [_env("OMPI_MCA_orte_default_hostfile", "x")]
    problems = render.problems(mpi_runtime(), plain_job(trainer={"env": env}))
    assert [problem.split(": ")[:2] for problem in problems] == [["FILE:3", "spec.trainer.env"]]
    assert problems == render.as_validated()


def test_warnings_are_those_of_validate(render: Command) -> None:
    old = plain_runtime()
    old["metadata"]["labels"] = {"trainer.kubeflow.org/support": "deprecated"}
    code, out, err = render(old, plain_job())
    assert (code, yaml.safe_load(out)) == (0, jobset("demo"))
    assert "is deprecated" in err
    assert err.splitlines() == render.as_validated()


def test_train_job_managed_by_another_controller_is_reported(render: Command) -> None:
    job = plain_job(managedBy="kueue.x-k8s.io/multikueue")
    code, out, err = render(plain_runtime(), job)
    assert (code, yaml.safe_load(out)) == (0, jobset("demo"))
    assert err == (
        "FILE:3: spec.managedBy: warning: kueue.x-k8s.io/multikueue manages this TrainJob: "
        "kftrainer would apply nothing\n"
    )


# ---- bad input


def runtime_of(change: Callable[[Object], None]) -> Object:
    job = replicated_job()
    change(job)
    return plain_runtime([job])


def _with_other_container(job: Object) -> None:
    job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "other"


def _with_no_pods(job: Object) -> None:
    job["template"]["spec"]["parallelism"] = 0


def _with_fewer_than_no_jobs(job: Object) -> None:
    job["replicas"] = -1


def _with_bad_quantity(job: Object) -> None:
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"memory": "much"}}


def _with_text_for_env(job: Object) -> None:
    job["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = "A=1"


def _with_text_for_containers(job: Object) -> None:
    job["template"]["spec"]["template"]["spec"]["containers"] = "node"


BAD_RUNTIMES = {
    "no template": (plain_runtime(template=None), ["spec.template.spec"]),
    "an empty template": (plain_runtime(template={}), ["spec.template"]),
    "no jobs": (plain_runtime(template={"spec": {"suspend": True}}), [f"{JOBS}"]),
    "a missing container": (
        runtime_of(_with_other_container),
        [f"{JOBS}[0].{POD}.containers"],
    ),
    "no pods": (
        runtime_of(_with_no_pods),
        [f"{JOBS}[0].template.spec.parallelism"],
    ),
    "fewer than no jobs": (
        runtime_of(_with_fewer_than_no_jobs),
        [f"{JOBS}[0].replicas"],
    ),
    "no nodes": (plain_runtime(mlPolicy={"numNodes": 0}), ["spec.mlPolicy.numNodes"]),
    "fewer than no nodes": (
        plain_runtime(mlPolicy={"numNodes": -3}),
        ["spec.mlPolicy.numNodes"],
    ),
    "a quantity that is none": (
        runtime_of(_with_bad_quantity),
        [f"{JOBS}[0].{POD}.containers[0].resources.limits.memory"],
    ),
    "two policies": (
        plain_runtime(mlPolicy={"torch": {}, "mpi": {}}),
        ["spec.mlPolicy"],
    ),
    "two schedulers": (
        plain_runtime(podGroupPolicy={"coscheduling": {}, "volcano": {}}),
        ["spec.podGroupPolicy"],
    ),
    "an unknown MPI implementation": (
        mpi_runtime(mpiImplementation="LAM"),
        ["spec.mlPolicy.mpi.mpiImplementation"],
    ),
    "text for a list": (
        runtime_of(_with_text_for_env),
        [f"{JOBS}[0].{POD}.containers[0].env"],
    ),
    "text for containers": (
        runtime_of(_with_text_for_containers),
        [f"{JOBS}[0].{POD}.containers"],
    ),
    "text for a policy": (plain_runtime(mlPolicy="torch"), ["spec.mlPolicy"]),
    "several": (
        plain_runtime(mlPolicy={"numNodes": 0}, podGroupPolicy=3),
        ["spec.mlPolicy.numNodes", "spec.podGroupPolicy"],
    ),
}


@pytest.mark.parametrize(("broken", "messages"), BAD_RUNTIMES.values(), ids=BAD_RUNTIMES)
def test_invalid_runtime_is_reported_once_with_its_position(
    render: Command, broken: Object, messages: list[str]
) -> None:
    problems = render.problems(broken, plain_job("a"), plain_job("b"))
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["FILE:1", path] for path in messages
    ]
    assert problems == render.as_validated()


OVERRIDE = {"targetJobs": [{"name": "nonesuch"}], "spec": {}}
BAD_JOBS = {
    "an override for an unknown job": (
        {"podTemplateOverrides": [OVERRIDE]},
        ["spec.podTemplateOverrides[0].targetJobs[0].name"],
    ),
    "an override for no job": (
        {"podTemplateOverrides": [{"targetJobs": []}]},
        ["spec.podTemplateOverrides[0].targetJobs"],
    ),
    "an override for a job without a name": (
        {"podTemplateOverrides": [{"targetJobs": [{"name": ""}]}]},
        ["spec.podTemplateOverrides[0].targetJobs[0].name"],
    ),
    "no nodes": ({"trainer": {"numNodes": 0}}, ["spec.trainer.numNodes"]),
    "fewer than no nodes": (
        {"trainer": {"numNodes": -1}},
        ["spec.trainer.numNodes"],
    ),
    "a quantity that is none": (
        {"trainer": {"resourcesPerNode": {"limits": {"cpu": "1 core"}}}},
        ["spec.trainer.resourcesPerNode.limits.cpu"],
    ),
    "text for a list": ({"trainer": {"args": "-x"}}, ["spec.trainer.args"]),
    "text for variables": ({"trainer": {"env": "A=1"}}, ["spec.trainer.env"]),
    "a number for a variable": (
        {"trainer": {"env": [{"name": "A", "value": 1}]}},
        ["spec.trainer.env[0].value"],
    ),
    "a variable without a name": (
        {"trainer": {"env": [{"value": "1"}]}},
        ["spec.trainer.env[0].name"],
    ),
    "words for a number": (
        {"trainer": {"numProcPerNode": "many"}},
        ["spec.trainer.numProcPerNode"],
    ),
    "a runtime that is not there": (
        {"runtimeRef": {"name": "nonesuch"}},
        ["spec.runtimeRef"],
    ),
    "a runtime of an unknown kind": (
        {"runtimeRef": {"name": "x", "kind": "Deployment", "apiGroup": "apps"}},
        ["spec.runtimeRef"],
    ),
    "a dataset that nobody fetches": (
        {"initializer": {"dataset": {"storageUri": "hf://x"}}},
        ["spec.runtimeRef"],
    ),
    "several": (
        {"suspend": "yes", "trainer": {"args": "-x"}, "labels": {"a": 1}},
        [
            "spec.suspend",
            "spec.trainer.args",
            "spec.labels.a",
        ],
    ),
}


@pytest.mark.parametrize(("spec", "messages"), BAD_JOBS.values(), ids=BAD_JOBS)
def test_invalid_train_job_is_reported_with_the_field(
    render: Command, spec: Object, messages: list[str]
) -> None:
    job = {**plain_job(), "spec": {**plain_job()["spec"], **spec}}
    problems = render.problems(plain_runtime(), job, plain_job("good"))
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["FILE:3", path] for path in messages
    ]
    assert problems == render.as_validated()


def _named(metadata: object) -> Object:
    return {**plain_job(), "metadata": metadata}


KINDS = "TrainJob, TrainingRuntime, ClusterTrainingRuntime of trainer.kubeflow.org/v1alpha1"
NO_NAME = "metadata.name: Required value"
MALFORMED_DOCUMENTS = {
    "text": ("text", "not an object: expected a mapping with apiVersion and kind"),
    "a list": ([1], "not an object: expected a mapping with apiVersion and kind"),
    "nothing known": ({"a": 1}, "apiVersion: Required value"),
    "no kind": ({"apiVersion": "v1"}, "kind: Required value"),
    "kind 3": ({"apiVersion": "v1", "kind": 3}, "kind: Invalid value: must be a string"),
    "another version": (
        {**plain_job(), "apiVersion": "trainer.kubeflow.org/v1"},
        f"kind: Unsupported value: TrainJob of trainer.kubeflow.org/v1: the only kinds are {KINDS}",
    ),
    "no name": (
        _named({}),
        f"{NO_NAME}: name or generateName is required",
    ),
    "text for metadata": (_named("x"), "metadata: Invalid value: must be an object"),
    "name 1": (
        _named({"name": 1}),
        "metadata.name: Invalid value: must be a string: put it in quotes",
    ),
    "labels": (
        _named({"name": "demo", "labels": ["x"]}),
        "metadata.labels: Invalid value: must be an object",
    ),
    "a list of Secrets that is none": (
        {"apiVersion": "v1", "kind": "SecretList", "items": {"kind": "Secret"}},
        "items: Invalid value: must be a list",
    ),
}


@pytest.mark.parametrize(
    ("document", "message"), MALFORMED_DOCUMENTS.values(), ids=MALFORMED_DOCUMENTS
)
def test_document_of_another_kind_is_reported(
    render: Command, document: object, message: str
) -> None:
    problems = render.problems(plain_runtime(), document, plain_job("good"))
    assert problems == [f"FILE:3: {message}"] == render.as_validated()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(
            _named({"generateName": "demo-"}),
            f"FILE:3: {NO_NAME}: only the API server can generate one",
            id="generateName",
        ),
        pytest.param(
            plain_runtime(),
            'FILE:3: metadata.name: Duplicate value: "plain": the ClusterTrainingRuntime in FILE:1 '
            "has the same name",
            id="the same runtime twice",
        ),
        pytest.param(
            plain_job("good"),
            'FILE:5: metadata.name: Duplicate value: "good": the TrainJob in FILE:3 '
            "has the same name",
            id="the same TrainJob twice",
        ),
    ],
)
def test_train_jobs_must_be_named_and_unique(
    render: Command, document: object, message: str
) -> None:
    assert render.problems(plain_runtime(), document, plain_job("good")) == [message]


def test_runtime_missing_from_the_files_is_reported(render: Command) -> None:
    assert render.problems(plain_job()) == [
        "FILE:1: spec.runtimeRef.name: Not found: ClusterTrainingRuntime plain is not among "
        "the given files"
    ]


UNPRINTABLE = "a\n\x1b[31m\x9b\u2028\u202e"
ESCAPED = r"a\n\x1b[31m\x9b\u2028\u202e"


def test_invisible_characters_are_escaped(render: Command) -> None:
    """A line of output stays one, and a document does not get to talk to the terminal."""
    unprintable = plain_job(UNPRINTABLE, labels={UNPRINTABLE: 1}, **{UNPRINTABLE: 1})
    unprintable["metadata"]["namespace"] = UNPRINTABLE
    code, out, err = render(plain_runtime(), unprintable, {"apiVersion": UNPRINTABLE, "kind": 1})
    assert (code, out) == (1, "")
    assert "\x1b" not in err
    assert f"FILE:3: spec[{ESCAPED}]: Unknown field" in err.split("\n")
    assert err.splitlines() == render.as_validated()


def test_invisible_characters_in_a_file_name_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{UNPRINTABLE}.yaml").write_text("a: 1\n---\n- 1\n")
    assert main(["render", "-f", str(tmp_path), UNPRINTABLE]) == 1
    assert capsys.readouterr().err.split("\n") == [
        f"{tmp_path}/{ESCAPED}.yaml:3: not an object: expected a mapping with apiVersion and kind",
        f"{ESCAPED}: no such file or directory",
        f"{tmp_path}/{ESCAPED}.yaml:1: apiVersion: Required value",
        "",
    ]


def given_job_set(**change: Any) -> Object:
    return {**jobset("demo"), **change}


def limit_range(spec: Any) -> Object:
    metadata = {"name": "limits"}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": spec}


def runtime_class(**change: Any) -> Object:
    metadata = {"name": "vm"}
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, **change}


def without(field: str, document: Object) -> Object:
    return {key: value for key, value in document.items() if key != field}


def owned_by(references: Any, kind: str) -> Object:
    metadata = {"name": "demo", "ownerReferences": references}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


MALFORMED_OBJECTS = {
    "no spec": (without("spec", given_job_set()), ["spec"]),
    "a null for a spec": (given_job_set(spec=None), ["spec"]),
    "text for a status": (given_job_set(status="x"), ["status"]),
    "text for conditions": (
        given_job_set(status={"conditions": "x", "replicatedJobsStatus": [None]}),
        [
            "status.conditions",
            "status.replicatedJobsStatus[0]",
        ],
    ),
    "text for owners": (owned_by("x", "Secret"), ["metadata.ownerReferences"]),
    "text for an owner": (
        owned_by(["x"], "ConfigMap"),
        ["metadata.ownerReferences[0]"],
    ),
    "text for limits": (limit_range("x"), ["spec"]),
    "an object for limits": (limit_range({"limits": {}}), ["spec.limits"]),
    "a null for a limit": (limit_range({"limits": [None]}), ["spec.limits[0]"]),
    "text for a default": (
        limit_range({"limits": [{"type": "Container", "default": "x", "min": ["x"]}]}),
        ["spec.limits[0].default", "spec.limits[0].min"],
    ),
    "a limit that is no quantity": (
        limit_range({"limits": [{"type": "Container", "defaultRequest": {"cpu": "x"}}]}),
        ["spec.limits[0].defaultRequest[cpu]"],
    ),
    "text for overhead": (runtime_class(overhead="x"), ["overhead"]),
    "a list for podFixed": (
        runtime_class(overhead={"podFixed": []}),
        ["overhead.podFixed"],
    ),
    "an overhead that is no quantity": (
        runtime_class(overhead={"podFixed": {"x.com/y": []}}),
        ["overhead.podFixed[x.com/y]"],
    ),
}


@pytest.mark.parametrize(
    ("malformed", "messages"), MALFORMED_OBJECTS.values(), ids=MALFORMED_OBJECTS
)
def test_invalid_existing_object_is_reported_with_its_position(
    render: Command, malformed: Object, messages: list[str]
) -> None:
    problems = render.problems(gang_runtime(), malformed, plain_job())
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["FILE:3", path] for path in messages
    ]
    assert problems == render.as_validated()


def gang_runtime() -> Object:
    job = replicated_job()
    job["template"]["spec"]["template"]["spec"] |= {"runtimeClassName": "vm", "schedulerName": "s"}
    return plain_runtime([job], podGroupPolicy={"coscheduling": {}})


def test_nulls_in_objects_that_are_there_already_are_nothing(render: Command) -> None:
    malformed = [
        limit_range(None),
        runtime_class(overhead={"podFixed": None}),
        owned_by(None, "Secret"),
        given_job_set(metadata={"name": "other"}, status=None),
    ]
    found = render.objects(gang_runtime(), *malformed, plain_job())
    assert [each["kind"] for each in found] == ["PodGroup", "JobSet"]


def test_duplicate_key_is_reported(render: Command, capsys: pytest.CaptureFixture[str]) -> None:
    render.file.write_text("kind: TrainJob\nmetadata: {}\nkind: TrainJob\n")
    assert main(["render", "-f", str(render.file)]) == 1
    assert capsys.readouterr() == ("", f"{render.file}:3: duplicate key 'kind'\n")


def test_a_runtime_that_could_not_be_read_is_not_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(plain_job()))
    (tmp_path / "runtime.yaml").write_text("kind: [")
    assert main(["render", "-f", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == [f"{tmp_path}/runtime.yaml:2"]


def test_missing_file_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", "nonesuch.yaml"]) == 1
    assert capsys.readouterr() == ("", "nonesuch.yaml: no such file or directory\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the following arguments are required: -f/--filename"),
        (["-f"], "expected at least one argument"),
        (["-f", "x", "-o", "xml"], "invalid choice: 'xml'"),
        (["-f", "x", "-o", "json", "--explain"], "not allowed with argument"),
        (["-f", "x", "--diff", "y", "--explain"], "not allowed with argument"),
    ],
)
def test_bad_usage(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["render", *options])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_same_file_twice_is_an_error(render: Command, capsys: pytest.CaptureFixture[str]) -> None:
    render.file.write_text(json.dumps(plain_runtime()))
    assert main(["render", "-f", str(render.file), str(render.file)]) == 1
    message = f"the ClusterTrainingRuntime in {render.file}:1 has the same name\n"
    assert capsys.readouterr().err.endswith(message)


def test_objects_of_one_name_in_two_namespaces_are_two(render: Command) -> None:
    other = plain_job()
    other["metadata"]["namespace"] = "other"
    found = render.objects(plain_runtime(), plain_job(), other)
    assert found == [jobset("demo"), jobset("demo", "other")]


def test_errors_are_reported_in_document_order(render: Command) -> None:
    problems = render.problems(
        plain_job("a", trainer={"args": "x"}),
        runtime("other", "ClusterTrainingRuntime", [replicated_job(), replicated_job("twin")]),
        plain_job("b", podTemplateOverrides=[OVERRIDE]),
        plain_runtime(),
        train_job("c", runtimeRef={"name": "other"}),
        train_job("d", runtimeRef={"name": "nonesuch"}),
        plain_job("good"),
    )
    assert [problem.split(": ")[0] for problem in problems] == [
        "FILE:1",
        "FILE:3",
        "FILE:3",
        "FILE:5",
        "FILE:11",
    ]


def test_unreferenced_runtime_is_validated(render: Command) -> None:
    [problem] = render.problems(runtime_of(_with_other_container))
    assert problem.startswith(f"FILE:1: {JOBS}[0].{POD}.containers: ")


def test_runtime_without_trainer_is_rendered(render: Command) -> None:
    plain = plain_runtime(template={"spec": {"replicatedJobs": [replicated_job(step=None)]}})
    code, out, err = render(plain, plain_job(trainer={"numNodes": 3, "image": "mine"}))
    assert (code, "spec.trainer: warning: image, numNodes: no effect" in err) == (0, True)
    [job] = yaml.safe_load(out)["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    assert (job["template"]["spec"]["parallelism"], container["image"]) == (1, "trainer")


def test_a_cluster_runtime_has_no_namespace(render: Command) -> None:
    placed = plain_runtime()
    placed["metadata"]["namespace"] = "somewhere"
    code, out, err = render(placed, plain_job())
    assert (code, yaml.safe_load(out)) == (0, jobset("demo"))
    assert err.startswith("FILE:1: metadata.namespace: warning: ignored: ")


# ---- --config


def configuration(folder: Path, **plugins: list[str]) -> tuple[str, str]:
    file = folder / "config.yaml"
    head = {"apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration"}
    file.write_text(yaml.safe_dump({**head, "plugins": plugins}))
    return "--config", str(file)


def test_configuration_selects_the_plugins(render: Command, tmp_path: Path) -> None:
    options = configuration(tmp_path, disabled=["PlainML"])
    found = render.objects(plain_runtime(), plain_job(trainer={"numNodes": 5}), options=options)
    assert found == [jobset("demo")]


def test_missing_plugin_is_reported(render: Command, tmp_path: Path) -> None:
    options = configuration(tmp_path, enabled=["nonesuch"])
    [line] = render.problems(plain_runtime(), options=options)
    assert line.startswith("plugins.enabled: nonesuch: no installed package declares it")


def test_unreadable_configuration_is_reported_in_one_line(render: Command, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: [")
    [line] = render.problems(plain_runtime(), options=("--config", str(file)))
    assert line.startswith(f"failed to decode config file: {file}:2: ")


# ---- --explain


def test_explain_shows_the_source_of_each_value(render: Command) -> None:
    job = plain_job(trainer={"numNodes": 3, "image": "mine", "env": [_env("A", "1")]})
    code, out, err = render(plain_runtime(), job, options=("--explain",))
    head = "JobSet demo: spec.replicatedJobs[node].template.spec"
    node = f"{head}.template.spec.containers[node]"
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f'{node}.image = "mine"  TrainJob ← spec.trainer.image',
        f'{node}.env[A] = "1"  JobSet ← spec.trainer.env[0]',
        f"{head}.parallelism = 3  PlainML ← spec.trainer.numNodes",
        f"{head}.completions = 3  PlainML ← spec.trainer.numNodes",
        "JobSet demo: spec.suspend = false  JobSet ← spec.suspend",
    ]


def without_sources(lines: str) -> list[str]:
    return [line.partition(" ← ")[0] for line in lines.splitlines()]


def test_explain_covers_the_other_objects(render: Command) -> None:
    job = plain_job()
    job["metadata"]["namespace"] = "team"
    code, out, _ = render(mpi_runtime(), job, options=("--explain",))
    secret, config_map = "Secret team/demo-mpi-ssh-auth", "ConfigMap team/demo-mpi-hostfile"
    hosts = "".join(rf"demo-node-0-{n}.demo slots=1\n" for n in range(2))
    assert code == 0
    assert without_sources(out)[:5] == [
        f'{secret}: type = "kubernetes.io/ssh-auth"  MPI',
        f"{secret}: immutable = true  MPI",
        f'{secret}: data[ssh-privatekey] = "<redacted>"  MPI',
        f'{secret}: data[ssh-publickey] = "<redacted>"  MPI',
        f'{config_map}: data[hostfile] = "{hosts}"  MPI',
    ]
    assert all(line.startswith("JobSet team/demo: ") for line in out.splitlines()[5:])


def test_explain_covers_a_pod_group(render: Command) -> None:
    code, out, _ = render(gang_runtime(), plain_job(), options=("--explain",))
    assert code == 0
    assert without_sources(out)[:2] == [
        "PodGroup demo: spec.minMember = 2  CoScheduling",
        "PodGroup demo: spec.scheduleTimeoutSeconds = 60  CoScheduling",
    ]


def test_explain_escapes_invisible_characters(render: Command) -> None:
    job = plain_job(trainer={"env": [_env(UNPRINTABLE, "x")]})
    code, out, _ = render(plain_runtime(), job, options=("--explain",))
    assert code == 0
    assert f'.env[{ESCAPED}] = "x"' in out
    assert all(line.startswith("JobSet demo: ") for line in out.splitlines())


# ---- --diff


@pytest.fixture
def earlier(render: Command, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    def write(*documents: Object, form: str = "yaml") -> tuple[str, str]:
        code, out, _ = render(*documents, options=("-o", form))
        assert code == 0
        file = tmp_path / "earlier"
        file.write_text(out)
        return "--diff", str(file)

    return write


Earlier = Callable[..., tuple[str, str]]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_no_difference(render: Command, earlier: Earlier, form: str) -> None:
    documents = (mpi_runtime(), plain_job("a"), plain_job("b"))
    options = earlier(*documents, form=form)
    assert render(*reversed(documents), options=options) == (0, "", "")


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_difference(render: Command, earlier: Earlier, form: str) -> None:
    options = earlier(plain_runtime(), plain_job("a"), plain_job("b"), form=form)
    changed = plain_job("a", trainer={"image": "mine"})
    code, out, err = render(plain_runtime(), changed, plain_job("b"), options=options)
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[:2] == [f"--- JobSet default/a in {options[1]}", "+++ JobSet default/a now"]
    assert [line for line in lines[2:] if line[0] in "-+"] == [
        "-            - image: trainer",
        "+            - image: mine",
    ]


def test_diff_headers_escape_invisible_characters(render: Command, tmp_path: Path) -> None:
    file = tmp_path / UNPRINTABLE
    metadata = {"name": UNPRINTABLE}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}))
    code, out, _ = render(plain_runtime(), options=("--diff", str(file)))
    assert code == 1
    assert out.split("\n")[:2] == [
        f"--- Secret {ESCAPED} in {tmp_path}/{ESCAPED}",
        f"+++ Secret {ESCAPED} now",
    ]


def test_diff_shows_added_and_removed_objects(render: Command, earlier: Earlier) -> None:
    options = earlier(plain_runtime(), plain_job("a"), plain_job("b"))
    code, out, _ = render(plain_runtime(), plain_job("b"), plain_job("c"), options=options)
    lines = out.splitlines()
    assert code == 1
    assert [line for line in lines if line.startswith("+++")] == [
        "+++ JobSet default/c now",
        "+++ JobSet default/a now",
    ]
    assert {line[0] for line in lines[lines.index("+++ JobSet default/a now") + 2 :]} == {"-"}


def test_diff_with_invalid_input_exits_with_2(render: Command, tmp_path: Path) -> None:
    missing = ("--diff", str(tmp_path / "nonesuch"))
    assert render(plain_runtime(), plain_job(), options=missing) == (
        2,
        "",
        f"{tmp_path}/nonesuch: no such file or directory\n",
    )
    assert render(plain_job(), options=missing)[:2] == (2, "")
    unrelated = tmp_path / "unrelated"
    unrelated.write_text("a: 1\n")
    assert render(plain_runtime(), plain_job(), options=("--diff", str(unrelated))) == (
        2,
        "",
        f"{unrelated}:1: not an object that was rendered: it has no apiVersion, kind or name\n",
    )


@pytest.mark.parametrize("case", UNSERVED, ids=str)
def test_field_of_another_release_is_rejected_by_name(render: Command, case: Unserved) -> None:
    document = case.document("demo")
    if case.kind == "TrainJob":
        document["spec"]["runtimeRef"] = {"name": "plain"}
        [line] = render.problems(plain_runtime(), document)
    else:
        reference = {"name": "demo", "kind": case.kind}
        [line] = render.problems(document, train_job(runtimeRef=reference))
    assert f": {case.path}: Forbidden: {case.named}" in line


def resources(amount: object) -> Object:
    return {"resourcesPerNode": {"limits": {"cpu": amount}}}


@pytest.mark.parametrize(("amount", "stored"), [(4.0, "4"), (0.5, "500m"), ("1000m", "1")])
def test_train_job_is_rendered_from_its_stored_form(
    render: Command, amount: object, stored: str
) -> None:
    """The mutating webhook rewrites quantities before the API server checks the schema."""
    given = plain_job(trainer={**resources(amount), "env": [], "command": []}, runtimePatches=[])
    objects = render.objects(plain_runtime(), given)
    assert objects == render.objects(plain_runtime(), plain_job(trainer=resources(stored)))
    render(plain_runtime(), given)
    assert render.as_validated() == []


def test_unknown_empty_list_is_an_error(render: Command) -> None:
    """The API server finds unknown fields before it calls the mutating webhook."""
    [problem] = render.problems(plain_runtime(), plain_job(env=[], trainer={"args": []}))
    assert problem.startswith("FILE:3: spec.env: ")


@pytest.mark.parametrize("amount", ["-1", "much"])
def test_invalid_quantity_is_reported_as_it_was_written(render: Command, amount: str) -> None:
    [problem] = render.problems(plain_runtime(), plain_job(trainer=resources(amount)))
    assert "spec.trainer.resourcesPerNode.limits" in problem
    assert f'"{amount}"' in problem


def test_resource_claim_templates_are_read_from_the_files(render: Command) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    job = plain_job(trainer={"resourceClaimsPerNode": claims})
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"count": 2}}]}}},
    }
    code, out, _ = render(plain_runtime(), job, template)
    assert (code, yaml.safe_load(out)["metadata"]["annotations"]) == (
        0,
        {"trainer.kubeflow.org/claimed-devices": "2"},
    )
    code, out, err = render(plain_runtime(), job)
    assert (code, out) == (1, "")
    assert (
        'spec.trainer.resourceClaimsPerNode[0].resourceClaimTemplateName: Not found: "gpus"' in err
    )
