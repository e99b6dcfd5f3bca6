"""The document about the configuration matches types and flags; its example is valid."""

import re
from pathlib import Path

from generate import configuration
from kftrainer import config
from kftrainer.api.configuration import CONTROLLERS, DEFAULT
from kftrainer.cli.commands.manager import FLAGS

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_document_is_up_to_date() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == configuration.document(), "run `make generate`"


def test_example_contains_all_defaults() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", configuration.document(), flags=re.DOTALL)
    read = config.parse(example, "the example")
    for name in type(DEFAULT).model_fields:
        section = getattr(read, name)
        if name == "controller":
            assert section.group_kind_concurrency == CONTROLLERS
        else:
            assert section == getattr(DEFAULT, name)
        if not isinstance(section, str):
            assert section.model_fields_set == set(type(section).model_fields)


def test_every_key_is_described() -> None:
    for _, section in configuration.sections():
        assert section.__doc__
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"


def test_every_flag_is_listed_with_its_key() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", configuration.document(), re.MULTILINE)
    flags_by_key = {key: flags for key, flags in rows if flags}
    assert set(flags_by_key) == {key for _, key in FLAGS.values()}
    assert flags_by_key["leaderElect"] == "`--leader-elect`, `--no-leader-elect`"
    assert flags_by_key["burst"] == "`--burst N`"
