import time

import pytest

from kftrainer.kube.client.errors import error_from_status
from kftrainer.kube.redaction import redacted

SECRET = "hunter2"  # noqa: S105
DENIED = 'admission webhook "vjobset.kb.io" denied the request: '

KEPT = [
    "",
    "no field error at all",
    'spec.x: Invalid value: "short": must be long',
    "spec.numNodes: Invalid value: 0: must be at least 1",
    'spec.x: Unsupported value: "a": supported values: "b", "c"',
    'spec.x: Invalid value: "null": must be object',
    'a: Invalid value: "say \\"hi\\": [": b, c: Required value',
    '[a: Invalid value: "x": b, c: Not found: "y"]',
    "spec.resources: Invalid value: 100Mi: must be less",
    "expected string, got nothing",
]


@pytest.mark.parametrize("message", KEPT)
def test_message_with_short_scalars_is_unchanged(message: str) -> None:
    assert redacted(message) == message


DUMPS = {
    "go": f'[]v1.ReplicatedJob{{v1.ReplicatedJob{{Name:"x", Env:[]v1.EnvVar{{"{SECRET}"}}}}}}',
    "go-map": f'map[string]interface {{}}{{"value":"{SECRET}"}}',
    "go-pointer": f'&v1.EnvVar{{Name:"A", Value:"{SECRET}", ValueFrom:(*v1.Source)(nil)}}',
    "go-brackets-in-string": f'[]string{{"]}}: {SECRET}", "{{["}}',
    "go-escapes-in-string": f'[]string{{"\\"]}}: {SECRET}\\\\", "\\\\"}}',
    "json": f'[{{"name":"node","env":[{{"name":"PASSWORD","value":"{SECRET}: x"}}]}}]',
    "unquoted": f"&PodSpec{{Containers:[]Container{{Container{{Env:{SECRET},}},}},}}",
    "unquoted-brackets": f"&PodSpec{{Env:a}}: {SECRET}}}, b]: {SECRET},}}",
    "unquoted-closing": f"[map[name:A value:x]]: {SECRET}]]",
    "long-string": f'"{"x" * 200}{SECRET}"',
    "long-scalar": f"{'x' * 200}{SECRET}",
}


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
def test_composite_and_long_values_are_omitted(dump: str) -> None:
    message = f"{DENIED}spec.replicatedJobs: Invalid value: {dump}: field is immutable"
    expected = f"{DENIED}spec.replicatedJobs: Invalid value: (omitted): field is immutable"
    assert redacted(message) == expected


@pytest.mark.parametrize("dump", [DUMPS[each] for each in ("go", "go-map", "json", "long-string")])
def test_each_error_of_an_aggregate_is_redacted(dump: str) -> None:
    message = f'[a: Invalid value: {dump}: x [y], b: Duplicate value: {dump}, c: Not found: "d"]'
    assert redacted(message) == (
        '[a: Invalid value: (omitted): x [y], b: Duplicate value: (omitted), c: Not found: "d"]'
    )


@pytest.mark.parametrize("end", range(0, len(DUMPS["go"]), 7))
def test_value_that_was_cut_off_is_omitted_to_the_end(end: int) -> None:
    message = f"a: Invalid value: {DUMPS['go'][: 2 + end]}"
    assert redacted(message) == "a: Invalid value: (omitted)"


def test_values_in_type_errors_of_server_side_apply_are_omitted() -> None:
    message = '.env[name="A"].value: expected string, got &value.valueUnstructured{Value:4711}'
    assert redacted(message) == '.env[name="A"].value: expected string, got (omitted)'


def test_surroundings_quoted_by_decoders_are_omitted() -> None:
    message = (
        f'ReadString: expects quote, error found in #10 byte of ...|value":{SECRET}|..., '
        f"bigger context ...|env: {SECRET} more|... at last"
    )
    assert redacted(message) == (
        "ReadString: expects quote, error found in #10 byte of ...|(omitted)|... at last"
    )


def test_api_errors_hold_no_composite_values() -> None:
    invalid = f"spec.x: Invalid value: {DUMPS['json']}: wrong"
    cause = {"reason": "FieldValueInvalid", "message": f"Invalid value: {DUMPS['json']}: wrong"}
    error = error_from_status({"code": 422, "message": invalid, "details": {"causes": [cause]}})
    assert (str(error), error.message, error.causes[0].message) == (
        "spec.x: Invalid value: (omitted): wrong",
        "spec.x: Invalid value: (omitted): wrong",
        "Invalid value: (omitted): wrong",
    )


MANY = {
    "opening": "a: Invalid value: [",
    "values": 'a: Invalid value: []string{"x"}: wrong, ',
    "quotes": 'a: Invalid value: ["',
    "escapes": 'a: Invalid value: "\\',
    "contexts": "...|",
}


@pytest.mark.parametrize("part", MANY.values(), ids=MANY)
def test_long_messages_are_redacted_in_linear_time(part: str) -> None:
    def seconds(times: int) -> float:
        message = part * times
        started = time.process_time()
        redacted(message)
        return time.process_time() - started

    assert seconds(40_000) < 100 * max(seconds(2_000), 0.002)
