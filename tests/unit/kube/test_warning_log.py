from structlog.testing import capture_logs

from kftrainer.kube.warning_log import REMEMBERED, WarningLog, warnings_in


def test_a_header_may_hold_several_texts_with_quotes_and_commas() -> None:
    header = r'299 - "use \"v1\", not v1beta1", 299 agent "a \\ b"'
    assert warnings_in(header) == ['use "v1", not v1beta1', r"a \ b"]


def test_a_header_of_another_form_holds_none() -> None:
    assert warnings_in("careful!") == []


def test_a_text_is_logged_once() -> None:
    warnings = WarningLog()
    with capture_logs() as logs:
        for text in ("one", "one", "two", "one"):
            warnings.log({"Warning": f'299 - "{text}"'}, "/api")
        warnings.log({}, "/api")
    assert [(each["text"], each["path"]) for each in logs] == [("one", "/api"), ("two", "/api")]


def test_number_of_remembered_warnings_is_limited() -> None:
    warnings = WarningLog()
    with capture_logs() as logs:
        for number in (*range(REMEMBERED + 1), 0):
            warnings.log({"Warning": f'299 - "{number}"'}, "/api")
    assert len(logs) == REMEMBERED + 2


def test_values_in_a_warning_are_not_logged() -> None:
    warnings = WarningLog()
    text = r"spec.env: Invalid value: []EnvVar{{Name:\"PASSWORD\",Value:\"a b\"}}: is deprecated"
    with capture_logs() as logs:
        for value in ("correct", "horse"):
            warnings.log({"Warning": f'299 - "{text.replace("a b", value)}"'}, "/api")
    assert [each["text"] for each in logs] == ["spec.env: Invalid value: (omitted): is deprecated"]
