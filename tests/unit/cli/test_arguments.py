"""Arguments that several commands have in common."""

import pytest

from kftrainer.cli.main import main


@pytest.mark.parametrize("command", ["manager", "check", "purge"])
@pytest.mark.parametrize("name", ["", "Team", "a/b", "-a", "a.b", "a" * 64])
def test_invalid_namespace_is_a_usage_error(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above all, nothing at all does not mean everywhere."""
    with pytest.raises(SystemExit) as ended:
        main([command, f"--namespace={name}"])
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert f"error: argument --namespace: {name!r} is not a valid namespace name: it " in output
