from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kftrainer.api.resources import CONFIG_MAPS
from kftrainer.runtime.explain import Explanation, leaves
from kftrainer.runtime.planned import Planned


@contextmanager
def planning(document: Any) -> Iterator[Explanation]:
    tape = Explanation()
    tape.attend(document)
    yield tape


def told(tape: Explanation) -> list[str]:
    return [str(setting) for setting in tape.settings()]


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        pytest.param({"a": {"b": 1}}, {"a.b": 1}, id="fields"),
        pytest.param({"a": {}, "b": []}, {"a": {}, "b": []}, id="what is empty"),
        pytest.param({"a": ["x", "y"]}, {"a": ["x", "y"]}, id="a list of words is one value"),
        pytest.param({"a": [{"x": 1}, {"x": 2}]}, {"a[0].x": 1, "a[1].x": 2}, id="no names"),
        pytest.param(
            {"containers": [{"name": "node", "image": "i"}]},
            {"containers[node].image": "i"},
            id="names",
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]}, {"env[A]": "1"}, id="a variable is its value"
        ),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": {"x": 1}}]}, {"env[A].valueFrom.x": 1}, id="from"
        ),
        pytest.param({"gates": [{"name": "g"}]}, {"gates[g]": {"name": "g"}}, id="only a name"),
        pytest.param(
            {"ports": [{"containerPort": 1, "name": "p"}]}, {"ports[1].name": "p"}, id="ports"
        ),
        pytest.param(
            {"ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]},
            {"ports[0].containerPort": 1, "ports[1].containerPort": 1, "ports[1].protocol": "UDP"},
            id="the same port twice",
        ),
        pytest.param(
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}]},
            {"volumeMounts[/a].name": "v"},
            id="mounts",
        ),
        pytest.param(
            {"labels": {"team": "a"}, "limits": {"x.com/gpu": 1, "cpu": 2}},
            {"labels[team]": "a", "limits[x.com/gpu]": 1, "limits.cpu": 2},
            id="maps",
        ),
    ],
)
def test_paths_have_names_in_them(document: Any, wanted: Any) -> None:
    assert dict(leaves(document)) == wanted


def test_what_a_plugin_changes_is_told_with_the_plugin() -> None:
    document = {"spec": {"a": 1, "b": 1}}
    with planning(document) as tape, tape.turn("Torch"):
        document["spec"] |= {"b": 2, "c": 3}
    assert told(tape) == ["spec.b = 2  Torch", "spec.c = 3  Torch"]


def test_the_source_is_that_of_the_longest_note() -> None:
    document: Any = {"spec": {"env": []}}
    with planning(document) as tape, tape.turn("Torch"):
        tape.note("spec", "wide")
        tape.note("spec.env[A]", "narrow")
        tape.note("spec.env[AB]", "neighbour")
        document["spec"]["env"] = [{"name": "A", "value": "1"}]
        document["spec"]["b"] = 2
    assert told(tape) == ['spec.env[A] = "1"  Torch ← narrow', "spec.b = 2  Torch ← wide"]


def test_the_last_plugin_to_change_a_value_is_told() -> None:
    document = {"a": 1}
    with planning(document) as tape:
        for plugin, value in (("First", 2), ("Second", 3)):
            with tape.turn(plugin):
                document["a"] = value
                tape.note("a", f"field of {plugin}")
    assert told(tape) == ["a = 3  Second ← field of Second"]


def test_notes_end_with_the_turn() -> None:
    document = {"a": 1}
    with planning(document) as tape:
        with tape.turn("First"):
            tape.note("a", "old")
        with tape.turn("Second"):
            document["a"] = 2
    assert told(tape) == ["a = 2  Second"]


def test_changes_before_a_note_are_its_own() -> None:
    document = {"pod": {"a": 1, "b": 1}}
    with planning(document) as tape, tape.turn("TrainJob"):
        document["pod"]["a"] = 2
        tape.note("pod", "overrides[0]")
        document["pod"]["b"] = 2
        tape.note("pod", "overrides[1]")
    assert told(tape) == [
        "pod.a = 2  TrainJob ← overrides[0]",
        "pod.b = 2  TrainJob ← overrides[1]",
    ]


def test_a_value_that_is_set_to_what_it_was_has_its_source_from_then_on() -> None:
    document = {"a": 1, "ports": [{"containerPort": 1, "name": "p"}], "b": {"c": 1}}
    with planning(document) as tape, tape.turn("Torch"):
        tape.note("a", "field")
        tape.note("ports[1]", "piece")
        tape.note("b", "field of which only a part is ours")
    assert told(tape) == ["a = 1  Torch ← field", 'ports[1].name = "p"  Torch ← piece']


def test_a_value_that_is_set_again_for_the_same_reason_stays_with_the_first() -> None:
    document = {"a": 1}
    with planning(document) as tape:
        for plugin, source in (("First", "one"), ("Second", "one"), ("Third", "other")):
            with tape.turn(plugin):
                tape.note("a", source)
            if plugin == "Second":
                assert told(tape) == ["a = 1  First ← one"]
    assert told(tape) == ["a = 1  Third ← other"]


def test_what_is_removed_is_told_at_the_end() -> None:
    document = {"a": {"b": 1, "c": 2}, "d": 4}
    with planning(document) as tape, tape.turn("Torch"):
        del document["a"]["b"]
        document["d"] = 5
        tape.note("a", "field")
    assert told(tape) == ["d = 5  Torch", "a.b removed  Torch ← field"]


def test_what_becomes_a_part_is_not_removed() -> None:
    document: Any = {"env": [], "a": {"b": 1}}
    with planning(document) as tape, tape.turn("Torch"):
        document["env"] = [{"name": "A", "value": "1"}]
        document["a"] = {}
    assert told(tape) == ['env[A] = "1"  Torch', "a = {}  Torch"]


def test_one_is_not_true() -> None:
    document: Any = {"a": 1, "b": ["x"]}
    with planning(document) as tape, tape.turn("Torch"):
        document["a"] = True
        document["b"].append("y")
    assert told(tape) == ["a = true  Torch", 'b = ["x","y"]  Torch']


def test_the_maker_of_an_object_is_told() -> None:
    first, second = (Planned(CONFIG_MAPS, {"metadata": {"name": "n"}}) for _ in range(2))
    tape = Explanation()
    for plugin, planned in (("First", first), ("Second", second)):
        with tape.turn(plugin):
            tape.made([planned])
    assert [tape.maker(first), tape.maker(second)] == ["First", "Second"]
