"""The findings of `kftrainer validate`, their positions, and the exit code."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kftrainer.cli.main import main
from tests.support.golden import CASES, INPUT, Case
from tests.support.objects import Object, runtime, train_job
from tests.support.other_releases import UNSERVED, Unserved

RUNTIME = runtime("plain", "ClusterTrainingRuntime", mlPolicy={"numNodes": 2})
NODE = [{"name": "node"}]


class Command:
    """The command, run on files that are written first."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capture = capture

    def __call__(self, *options: str, **files: Any) -> tuple[int, list[str]]:
        """The exit code, and the lines that were printed; names of files are without the folder."""
        code, out, _ = self.run(*options, **files)
        return code, out.splitlines()

    def run(self, *options: str, **files: Any) -> tuple[int, str, str]:
        """Exit code, standard output and standard error; documents are written as YAML."""
        names = []
        for name, content in files.items():
            file = self._folder / name
            names.append(str(file))
            data = content if isinstance(content, str | bytes) else yaml.safe_dump_all([*content])
            file.write_bytes(data if isinstance(data, bytes) else data.encode())
        code = main(["validate", "-f", *names, *options])
        out, err = self._capture.readouterr()
        assert "Traceback" not in err
        return code, out.replace(f"{self._folder}/", ""), err

    def findings(self, **files: Any) -> tuple[int, list[Object]]:
        code, out, err = self.run("-o", "json", **files)
        assert err == ""
        return code, json.loads(out)


@pytest.fixture
def validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


def job(name: str = "demo", **spec: Any) -> Object:
    return train_job(name, runtimeRef={"name": "plain"}, **spec)


GOOD = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: demo
spec:
  runtimeRef:
    name: plain
"""


def test_valid_documents_are_not_listed(validate: Command) -> None:
    assert validate.run(a=[job()], b=[RUNTIME]) == (
        0,
        "",
        "kftrainer: 2 objects checked: no problems found\n",
    )
    assert validate.findings(a=[job()], b=[RUNTIME]) == (0, [])


# Planning makes the best of these; admission does not let them come so far.
REFUSED = {
    "own/jobset-initializers",
    "own/jobset-initializers-as-in-the-template",
    "own/mpi-reserved-variables",
    "own/torch-d19-reserved-variables",
    "own/torch-sidecar",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plannable_documents_are_accepted(case: Case) -> None:
    assert main(["validate", "-f", str(case.file(INPUT))]) == (case.name in REFUSED)


def test_each_problem_is_a_line_with_the_place_of_the_field(validate: Command) -> None:
    text = f"""\
{GOOD}  trainer:
    numNodes: 0
    image: 3
    env:
    - name: A
      value: 7
    - name: A
---
{GOOD.replace("demo", "other")}  podTemplateOverrides:
  - targetJobs: []
  colour: red
"""
    assert validate("--config", "/dev/null", a=text)[0] == 2
    assert validate(a=text) == (
        1,
        [
            "a:9: spec.trainer.numNodes: Invalid value: 0: must be at least 1",
            "a:10: spec.trainer.image: Invalid value: must be a string: put it in quotes",
            "a:13: spec.trainer.env[0].value: Invalid value: must be a string: put it in quotes",
            'a:14: spec.trainer.env[1]: Duplicate value: "A": is already the name of another item',
            "a:24: spec.podTemplateOverrides[0].targetJobs: "
            "Invalid value: must have at least 1 item",
            "a:25: spec.colour: Unknown field",
        ],
    )


def test_missing_field_is_reported_at_its_parent(validate: Command) -> None:
    text = GOOD.replace("    name: plain\n", "    kind: TrainingRuntime\n")
    assert validate(a=text) == (1, ["a:6: spec.runtimeRef.name: Required value"])
    assert validate(a=GOOD.replace("  name: demo\n", "  labels: {}\n"))[1] == [
        "a:3: metadata.name: Required value: name or generateName is required"
    ]


def test_a_list_has_the_lines_of_its_items(validate: Command) -> None:
    text = (
        "apiVersion: v1\nkind: List\nitems:\n- " + GOOD.replace("\n", "\n  ") + "  suspend: maybe"
    )
    message = "spec.suspend: Invalid value: must be true or false"
    assert validate(a=text) == (1, [f"a:11: {message}"])
    broken = {**job(), "spec": {**job()["spec"], "suspend": "maybe"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [RUNTIME, broken]}
    lines = json.dumps(listed, indent=1).splitlines()
    line = next(n for n, each in enumerate(lines, 1) if "maybe" in each)
    assert validate(a="\n".join(lines)) == (1, [f"a:{line}: {message}"])


def test_admission_errors_are_reported(validate: Command) -> None:
    override = {"targetJobs": [{"name": "nonesuch"}]}
    code, lines = validate(a=[RUNTIME], b=[job(podTemplateOverrides=[override])])
    assert code == 1
    [line] = lines
    assert line.startswith(
        'b:8: spec.podTemplateOverrides[0].targetJobs[0].name: Invalid value: "nonesuch": must not'
    )


def test_admission_rules_are_skipped_after_schema_errors(validate: Command) -> None:
    override = {"targetJobs": [{"name": "nonesuch"}]}
    bad = job(podTemplateOverrides=[override], trainer={"numNodes": 0})
    assert [each["path"] for each in validate.findings(a=[RUNTIME, bad])[1]] == [
        "spec.trainer.numNodes"
    ]


def test_invalid_runtime_is_reported_once_and_not_at_its_jobs(validate: Command) -> None:
    no_jobs = runtime("plain", "ClusterTrainingRuntime", template={"spec": {"replicatedJobs": []}})
    code, findings = validate.findings(a=[job("one"), no_jobs, job("two")])
    assert code == 1
    assert [(each["path"], each["type"]) for each in findings] == [
        ("spec.template.spec.replicatedJobs", "FieldValueRequired")
    ]
    wrong_schema = {**RUNTIME, "spec": {"template": 3}}
    code, findings = validate.findings(a=[job(), wrong_schema])
    assert (code, [each["path"] for each in findings]) == (1, ["spec.template"])


def test_train_job_without_runtime_is_validated_alone(validate: Command) -> None:
    assert validate(a=GOOD) == (
        0,
        [
            "a:7: spec.runtimeRef.name: warning: ClusterTrainingRuntime plain is not "
            "among the given files, so checks that need the runtime were skipped"
        ],
    )


def test_a_runtime_that_is_missing_among_others_is_refused(validate: Command) -> None:
    other = {**RUNTIME, "metadata": {**RUNTIME["metadata"], "name": "other"}}
    on_own = GOOD.replace("name: plain", "name: mine")
    code, lines = validate(a=on_own, b=[other])
    assert code == 1
    assert lines == [
        "a:6: spec.runtimeRef: Invalid value: "
        'ClusterTrainingRuntime.trainer.kubeflow.org "mine" not found: specified '
        "clusterTrainingRuntime must be created before the TrainJob is created"
    ]
    of_another_kind = {**runtime("mine"), "kind": "TrainingRuntime"}
    assert validate(a=on_own, b=[of_another_kind])[0] == 0


def test_shipped_runtime_is_not_required_in_the_files(validate: Command) -> None:
    on_shipped = train_job(runtimeRef={"name": "torch-distributed"})
    code, [line] = validate(a=[on_shipped], b=[RUNTIME])
    assert (code, "warning: ClusterTrainingRuntime torch-distributed" in line) == (0, True)


def test_missing_runtime_is_a_warning_with_unreadable_documents(validate: Command) -> None:
    other = {**RUNTIME, "metadata": {**RUNTIME["metadata"], "name": "other"}}
    on_own = GOOD.replace("name: plain", "name: mine")
    code, lines = validate(a=on_own, b=[other], c="a: [")
    assert code == 2
    assert [line.partition(":")[0] for line in lines] == ["c", "a"]
    assert "warning" in lines[1]


def test_runtimes_are_found_in_their_namespaces(validate: Command) -> None:
    own = runtime("plain")
    own["metadata"]["namespace"] = "team"
    here = train_job(runtimeRef={"name": "plain", "kind": "TrainingRuntime"})
    in_team = {**here, "metadata": {"name": "job", "namespace": "team"}}
    assert validate(a=[own, in_team]) == (0, [])
    assert validate(a=[own, here])[0] == 1


def test_an_unknown_kind_of_runtime_is_refused(validate: Command) -> None:
    foreign_kind = train_job(runtimeRef={"name": "x", "kind": "Deployment", "apiGroup": "apps"})
    code, findings = validate.findings(a=[foreign_kind])
    assert code == 1
    assert [each["path"] for each in findings] == ["spec.runtimeRef"]
    assert [each["rule"] for each in findings] == ["runtime-unsupported"]


def test_warnings_do_not_change_the_exit_code(validate: Command) -> None:
    deprecated = {**RUNTIME, "metadata": {**RUNTIME["metadata"], "namespace": "team"}}
    labels = {**RUNTIME["metadata"]["labels"], "trainer.kubeflow.org/support": "deprecated"}
    deprecated["metadata"]["labels"] = labels
    code, findings = validate.findings(a=[deprecated, job()])
    assert code == 0
    assert {(each["severity"], each["type"]) for each in findings} == {("warning", None)}
    assert [each["path"] for each in findings] == ["", "metadata.namespace", ""]
    assert "has no namespace" in findings[1]["message"]
    assert "is deprecated" in findings[2]["message"]


def test_json_has_all_that_the_lines_have(validate: Command) -> None:
    findings = validate.findings(a=GOOD + "  suspend: 1\n")[1]
    assert findings == [
        {
            "file": findings[0]["file"],
            "line": 8,
            "path": "spec.suspend",
            "type": "FieldValueTypeInvalid",
            "message": "Invalid value: must be true or false",
            "severity": "error",
            "rule": None,
        }
    ]
    assert findings[0]["file"].endswith("a")


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({"trainer": {"numNodes": 0}}, ["FieldValueInvalid"]),
        ({"runtimeRef": {}}, ["FieldValueRequired"]),
        ({"suspend": 1}, ["FieldValueTypeInvalid"]),
        ({"podTemplateOverrides": [{"targetJobs": [{"name": "x"}], "spec": {"volumes": [
            {"name": "v"}, {"name": "v"}]}}]}, ["FieldValueDuplicate"]),
        ({"runtimeRef": {"name": "x" * 254}}, ["FieldValueTooLong"]),
        ({"nonesuch": 1}, ["UnknownField"]),
        ({"managedBy": "me"}, ["FieldValueInvalid"]),
    ],
)  # fmt: skip
def test_error_types_match_the_api_server(
    validate: Command, spec: Object, types: list[str]
) -> None:
    bad = {**job(), "spec": {**job()["spec"], **spec}}
    code, findings = validate.findings(a=[bad])
    assert (code, [each["type"] for each in findings]) == (1, types)


UNREADABLE = {
    "no such file": (None, "no such file or directory"),
    "no YAML": ("a: [", "not valid YAML: did not find expected node content"),
    "no UTF-8": (b"\xff\xfe", "not UTF-8 text"),
    "nothing": ("", "contains no objects"),
    "a comment": ("# nothing\n---\n", "contains no objects"),
    "text": ("hello", "not an object: expected a mapping"),
    "an empty List": ("kind: List\nitems: []", "contains no objects"),
    "a key twice": ("a: 1\na: 2", "duplicate key 'a'"),
}


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_input_exits_with_2(
    validate: Command, tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    if content is None:
        code, findings = validate.findings(a=[job(), RUNTIME])
        assert (code, findings) == (0, [])
        (tmp_path / "a").unlink()
        assert main(["validate", "-f", str(tmp_path / "a")]) == 2
        return
    code, findings = validate.findings(a=content, b=[{**job(), "spec": {}}])
    assert code == 2
    assert findings[0]["type"] == "Unreadable"
    assert findings[0]["message"].startswith(message)
    assert findings[1]["path"] == "spec.runtimeRef"  # the rest was looked at all the same


def test_a_folder_may_have_files_with_nothing_in_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# later\n")
    (tmp_path / "b.yaml").write_text(GOOD)
    assert main(["validate", "-f", str(tmp_path)]) == 0


def test_a_configuration_that_cannot_be_read_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    wanted = ["validate", "-f", f"{tmp_path}/a.yaml", "--config", f"{tmp_path}/none.yaml"]
    assert main([*wanted, "-o", "json"]) == 2
    [finding] = json.loads(capsys.readouterr().out)
    assert (finding["file"], finding["type"]) == (f"{tmp_path}/none.yaml", "Unreadable")


def test_plugins_are_those_of_the_configuration(validate: Command, tmp_path: Path) -> None:
    config = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "plugins": {"disabled": ["Torch"]},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    torch = runtime("plain", "ClusterTrainingRuntime")
    assert validate(a=[torch, job()])[0] == 0
    code, lines = validate("--config", f"{tmp_path}/config.yaml", a=[torch, job()])
    assert code == 1
    assert "needs the plugin Torch, which is disabled" in lines[0]


def test_objects_that_are_neither(validate: Command) -> None:
    other_objects = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo"}, "spec": "?"},
        {"apiVersion": "x/v1", "kind": "X", "metadata": "text"},
        {"apiVersion": "v1", "kind": "Secret", "data": "no name"},
    ]
    nothing = (2, ["a: contains no TrainJob and no runtime to check"])
    assert validate(a=other_objects) == nothing
    assert validate.findings(a=other_objects)[1][0]["type"] == "Unreadable"
    assert validate(a=[*other_objects, RUNTIME]) == (0, [])


def test_summary_names_the_kinds_that_are_skipped_or_used_as_context(validate: Command) -> None:
    others = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "b"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo"}},
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}},
    ]
    assert validate.run(a=[*others, RUNTIME, job()]) == (
        0,
        "",
        "kftrainer: 2 objects checked, 1 used as context (1 LimitRange), "
        "3 skipped (2 Deployment, 1 Service): no problems found\n",
    )


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("PyTorchJob", "such as torch-distributed"),
        ("MPIJob", "such as deepspeed-distributed"),
        ("TFJob", "which you write for its framework"),
        ("XGBoostJob", "which you write for its framework"),
    ],
)
def test_v1_job_is_an_error_with_a_hint_for_migration(
    validate: Command, kind: str, hint: str
) -> None:
    old = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "old"}}
    message = (
        f"a:2: kind: Unsupported value: {kind} of kubeflow.org/v1 is a job of the Training "
        "Operator (v1), which is not supported: write a TrainJob of "
        f"trainer.kubeflow.org/v1alpha1 that refers to a runtime, {hint}"
    )
    assert validate(a=[old]) == (1, [message])
    assert validate(a=[old, RUNTIME, job()]) == (1, [message])
    listed = {"apiVersion": "kubeflow.org/v1", "kind": f"{kind}List", "items": [{"metadata": {}}]}
    assert validate(a=[listed])[0] == 1


def test_other_kinds_of_the_group_of_v1_jobs_are_skipped(validate: Command) -> None:
    others = [
        {"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "metadata": {"name": "a"}},
        {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "a"}},
    ]
    assert validate(a=[*others, RUNTIME]) == (0, [])


def test_fail_on_warning_changes_the_exit_code_only(validate: Command) -> None:
    code, lines = validate(a=GOOD)
    assert (code, len(lines)) == (0, 1)
    assert validate("--fail-on-warning", a=GOOD) == (1, lines)
    assert validate("--fail-on-warning", a=[RUNTIME, job()]) == (0, [])
    assert validate("--fail-on-warning", a="a: [")[0] == 2


def test_field_of_another_release_gets_no_misleading_suggestion(validate: Command) -> None:
    _, lines = validate(a=GOOD + "  runtimePatches: []\n")
    assert [line for line in lines if "did you mean" in line] == []


def test_job_set_without_a_spec_is_an_error(validate: Command) -> None:
    no_spec = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "demo"},
    }
    assert validate(a=[RUNTIME, job(), no_spec])[0] == 1


def test_objects_read_by_planning_must_be_valid(validate: Command) -> None:
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "x"}, "spec": []}
    assert validate(a=[RUNTIME], b=[limits]) == (1, ["b:5: spec: Invalid value: must be an object"])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "TrainJob"}, "a:1: apiVersion: Required value"),
        ({"apiVersion": 3, "kind": "X"}, "a:1: apiVersion: Invalid value: must be a string"),
        (
            {"apiVersion": "trainer.kubeflow.org/v2", "kind": "TrainJob"},
            "a:2: kind: Unsupported value: TrainJob of trainer.kubeflow.org/v2: the only kinds are "
            "TrainJob, TrainingRuntime, ClusterTrainingRuntime of trainer.kubeflow.org/v1alpha1",
        ),
        (
            {"apiVersion": "v1", "kind": "ConfigMapList"},
            "a:1: items: Invalid value: must be a list",
        ),
    ],
)
def test_document_that_no_server_accepts_is_reported(
    validate: Command, document: Object, message: str
) -> None:
    assert validate(a=[document]) == (1, [message])


def test_duplicate_objects_are_reported(validate: Command) -> None:
    code, lines = validate(a=[RUNTIME, job()], b=[job()])
    assert code == 0
    assert [line.split(": ", 2)[:2] for line in lines] == [["b:4", "metadata.name"]]
    generated = {**job(), "metadata": {"generateName": "a-"}}
    assert validate(a=[RUNTIME, generated, generated]) == (0, [])


def test_values_that_may_be_secrets_are_never_shown(validate: Command) -> None:
    hidden = "hunter2"
    torch = runtime("plain", "ClusterTrainingRuntime")
    env = [{"name": "PET_NNODES", "value": hidden}, {"name": "B", "value": [hidden]}]
    override = {"targetJobs": [{"name": "x"}], "spec": {"containers": [{"name": "x", "env": env}]}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": [hidden], "data": {"a": hidden}}
    for each in (
        job(trainer={"env": env}),
        job(trainer={"env": env[:1]}),
        job(podTemplateOverrides=[override]),
        job(trainer={"env": [{"name": "A", "valu": hidden}]}),
    ):
        code, out, _ = validate.run(a=[torch, each, secret])
        assert code == 1
        assert hidden not in out


def test_messages_stay_on_one_line(validate: Command) -> None:
    code, lines = validate(a=[job(**{"x\n\x1b[2Jy": 1})])
    assert code == 1
    assert lines == ["a:8: spec[x\\n\\x1b[2Jy]: Unknown field"]


def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (GOOD + "  suspend: 1").encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["validate", "-f", "-"]) == 1
    assert capsys.readouterr().out.startswith("<stdin>:8: spec.suspend: ")


@pytest.mark.parametrize("case", UNSERVED, ids=str)
def test_field_of_another_release_is_rejected_by_name(validate: Command, case: Unserved) -> None:
    code, [line] = validate(
        file=[RUNTIME, case.document("demo")]
        if case.kind == "TrainJob"
        else [case.document("demo")]
    )
    assert code == 1
    assert f": {case.path}: Forbidden: {case.named}" in line


def test_object_beyond_a_limit_is_reported(validate: Command) -> None:
    large = [RUNTIME, job(trainer={"args": ["x" * 300_000]})]
    code, lines = validate(large=large)
    assert code == 1
    assert "<root>: Too long: may not be more than 262144 bytes as JSON, and is 3001" in lines[0]


CLAIMS = {"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpus"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {}}]}}},
}


def test_resource_claim_template_that_is_not_given_causes_a_warning(validate: Command) -> None:
    assert validate(a=[RUNTIME, job(trainer=CLAIMS), TEMPLATE]) == (0, [])
    code, [line] = validate(a=[RUNTIME, job(trainer=CLAIMS)])
    assert code == 0
    assert line.endswith(
        "warning: the TrainJob cannot be planned yet: ResourceClaimTemplate gpus is not found in "
        "namespace default: pods cannot start without it (spec.trainer.resourceClaimsPerNode[0])"
    )


def test_malformed_resource_claim_template_is_reported(validate: Command) -> None:
    malformed = {**TEMPLATE, "spec": {"spec": {"devices": {"requests": [{"exactly": []}]}}}}
    code, lines = validate(a=[RUNTIME, job(trainer=CLAIMS)], b=[malformed])
    assert code == 1
    assert [line.partition(": ")[2] for line in lines if line.startswith("b:")] == [
        "spec.spec.devices.requests[0].name: Required value",
        "spec.spec.devices.requests[0].exactly: Invalid value: must be an object",
    ]
