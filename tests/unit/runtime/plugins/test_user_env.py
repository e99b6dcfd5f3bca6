"""The TrainJob's variables: each in its place, and as many of them as there may be."""

from typing import Any

from kftrainer.runtime.plugins.user_env import set_all
from kftrainer.runtime.podset import Container
from kftrainer.runtime.trace import NO_TRACE
from tests.support.scaling_inputs import Compared


def container(*names: str) -> Container:
    env = [{"name": name, "value": "old"} for name in names]
    return Container({"name": "node", **({"env": env} if names else {})}, "", NO_TRACE)


def variables(*names: str) -> list[Any]:
    return [{"name": name, "value": "new"} for name in names]


def values(of: Container) -> dict[str, str]:
    return {each["name"]: each["value"] for each in of.body["env"]}


def test_variables_replace_those_of_the_same_name_and_others_follow() -> None:
    it = container("A", "B")
    set_all(it, variables("C", "B"), "spec.trainer.env")
    assert [*values(it).items()] == [("A", "old"), ("B", "new"), ("C", "new")]


def test_of_two_of_the_same_name_the_last_counts_in_the_place_of_the_first() -> None:
    it = container("A", "B", "A")
    set_all(it, [*variables("A", "D"), {"name": "D", "value": "last"}], "spec.trainer.env")
    assert [(each["name"], each["value"]) for each in it.env] == [
        ("A", "new"),
        ("B", "old"),
        ("A", "old"),
        ("D", "last"),
    ]


def test_skipped_variables_are_unchanged() -> None:
    it = container("A")
    set_all(it, variables("A", "B"), "spec.trainer.env", skip={"A"})
    assert values(it) == {"A": "old", "B": "new"}


def test_where_there_is_nothing_to_set_nothing_is_set() -> None:
    it = container()
    set_all(it, variables("A"), "spec.trainer.env", skip={"A"})
    assert "env" not in it.body


def test_very_many_are_not_compared_with_each_other() -> None:
    Compared.times = 0
    it = container("A")
    set_all(it, variables(*(Compared(f"V{index}") for index in range(1000))), "spec.trainer.env")
    assert len(it.env) == 1001
    assert Compared.times < 5000
