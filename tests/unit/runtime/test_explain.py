from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any

import pytest

from kftrainer.api.resources import CONFIG_MAPS
from kftrainer.runtime.explain import Explanation, leaves
from kftrainer.runtime.planned_object import PlannedObject


@contextmanager
def planning(document: Any) -> Iterator[Explanation]:
    trace = Explanation()
    trace.start(document)
    yield trace


def explained_lines(trace: Explanation) -> list[str]:
    return [str(setting) for setting in trace.settings()]


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
            {"labels[team]": "a", "limits[x.com/gpu]": 1, "limits[cpu]": 2},
            id="maps",
        ),
        pytest.param({"data": {"hostfile": "x"}}, {"data[hostfile]": "x"}, id="data"),
    ],
)
def test_paths_identify_list_items_by_name(document: Any, wanted: Any) -> None:
    assert dict(leaves(document)) == wanted


def test_change_is_attributed_to_its_plugin() -> None:
    document = {"spec": {"a": 1, "b": 1}}
    with planning(document) as trace, trace.changes_of("Torch"):
        document["spec"] |= {"b": 2, "c": 3}
    assert explained_lines(trace) == ["spec.b = 2  Torch", "spec.c = 3  Torch"]


def test_source_is_that_of_the_longest_noted_path() -> None:
    document: Any = {"spec": {"env": []}}
    with planning(document) as trace, trace.changes_of("Torch"):
        trace.note("spec", "wide")
        trace.note("spec.env[A]", "narrow")
        trace.note("spec.env[AB]", "neighbour")
        document["spec"]["env"] = [{"name": "A", "value": "1"}]
        document["spec"]["b"] = 2
    assert explained_lines(trace) == [
        'spec.env[A] = "1"  Torch ← narrow',
        "spec.b = 2  Torch ← wide",
    ]


def test_value_is_attributed_to_the_last_plugin_that_changed_it() -> None:
    document = {"a": 1}
    with planning(document) as trace:
        for plugin, value in (("First", 2), ("Second", 3)):
            with trace.changes_of(plugin):
                document["a"] = value
                trace.note("a", f"field of {plugin}")
    assert explained_lines(trace) == ["a = 3  Second ← field of Second"]


def test_notes_apply_to_one_plugin() -> None:
    document = {"a": 1}
    with planning(document) as trace:
        with trace.changes_of("First"):
            trace.note("a", "old")
        with trace.changes_of("Second"):
            document["a"] = 2
    assert explained_lines(trace) == ["a = 2  Second"]


def test_note_applies_to_earlier_changes_at_its_path() -> None:
    document = {"pod": {"a": 1, "b": 1}}
    with planning(document) as trace, trace.changes_of("TrainJob"):
        document["pod"]["a"] = 2
        trace.note("pod", "overrides[0]")
        document["pod"]["b"] = 2
        trace.note("pod", "overrides[1]")
    assert explained_lines(trace) == [
        "pod.a = 2  TrainJob ← overrides[0]",
        "pod.b = 2  TrainJob ← overrides[1]",
    ]


def test_value_set_again_unchanged_has_the_new_source() -> None:
    document = {"a": 1, "ports": [{"containerPort": 1, "name": "p"}], "b": {"c": 1}}
    with planning(document) as trace, trace.changes_of("Torch"):
        trace.note("a", "field")
        trace.note("ports[1]", "piece")
        trace.note("b", "field of which only a part is ours")
    assert explained_lines(trace) == ["a = 1  Torch ← field", 'ports[1].name = "p"  Torch ← piece']


@pytest.mark.parametrize("source", ["one", "other"])
def test_value_is_attributed_to_the_last_plugin_that_noted_it(source: str) -> None:
    document = {"a": 1, "env": [{"name": "A", "value": "x"}]}
    with planning(document) as trace:
        for plugin, field in (("First", "one"), ("Second", source), ("Third", None)):
            with trace.changes_of(plugin):
                for path in ("a", "env[A]") if field else ():
                    trace.note(path, field)
    assert explained_lines(trace) == [
        f"a = 1  Second ← {source}",
        f'env[A] = "x"  Second ← {source}',
    ]


def test_note_about_a_parent_does_not_attribute_unchanged_values() -> None:
    document = {"pod": {"a": 1, "b": 1}}
    with planning(document) as trace:
        with trace.changes_of("First"):
            document["pod"]["a"] = 2
            trace.note("pod.a", "one")
        with trace.changes_of("Second"):
            document["pod"]["b"] = 2
            trace.note("pod", "other")
    assert explained_lines(trace) == ["pod.a = 2  First ← one", "pod.b = 2  Second ← other"]


def test_items_of_a_new_list_have_their_own_sources() -> None:
    document: Any = {"containers": [{"name": "node", "image": "i"}]}
    [container] = document["containers"]
    with planning(document) as trace, trace.changes_of("JobSet"):
        container["envFrom"] = [{"secretRef": {"name": "a"}}]
        trace.note("containers[node].envFrom", "first")
        container["envFrom"].append({"secretRef": {"name": "b"}})
        trace.note("containers[node].envFrom", "second")
    assert explained_lines(trace) == [
        'containers[node].envFrom[0].secretRef.name = "a"  JobSet ← first',
        'containers[node].envFrom[1].secretRef.name = "b"  JobSet ← second',
    ]


def test_note_about_a_missing_path_is_ignored() -> None:
    document: Any = {"a": {"b": {"c": 1}, "d": 2}, "twins": [{"name": "x"}, {"name": "x", "i": 1}]}
    with planning(document) as trace, trace.changes_of("Torch"):
        trace.note("a.nonesuch.x", "typo")
        trace.note("twins[x].i", "indistinguishable")
        trace.note("a.b.c.deeper", "too deep")
        del document["a"]["b"]
        trace.note("a.b.c", "field")
    assert explained_lines(trace) == ["a.b.c removed  Torch ← field"]


def seconds(count: int) -> float:
    """The time to trace a number of variables, half of which are new."""

    def listen() -> float:
        env = [{"name": f"OLD{n}", "value": "x"} for n in range(count)]
        document = {"spec": {"jobs": [{"name": "node", "env": env}]}}
        start = process_time()
        with planning(document) as trace, trace.changes_of("PlainML"):
            for n in range(count):
                env.append({"name": f"NEW{n}", "value": "y"})
                trace.note(f"spec.jobs[node].env[NEW{n}]", f"spec.trainer.env[{n}]")
        assert len(trace.settings()) == count
        return process_time() - start

    return min(listen() for _ in range(3))


def test_time_is_proportional_to_the_number_of_variables() -> None:
    assert seconds(800) < 3 * 8 * seconds(100)  # 8 x 8 if it were quadratic


def test_values_of_other_objects_have_their_sources() -> None:
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    identity = {"name": "n", "namespace": "s", "ownerReferences": [{"uid": "1"}]}
    manifest = {
        **head,
        "metadata": {**identity, "labels": {"team": "a"}},
        "data": {"hostfile": "x", "more": "y"},
        "spec": {"minResources": {"cpu": "1"}},
    }
    sources = {"data[hostfile]": "spec.trainer.numNodes", "spec.minResources": "the pods"}
    planned = PlannedObject(CONFIG_MAPS, manifest, sources=sources)
    bare = PlannedObject(CONFIG_MAPS, {**head, "metadata": identity})
    trace = Explanation()
    with trace.changes_of("MPI"):
        trace.built([planned, bare])
    assert [str(each) for each in trace.settings_of(planned, manifest)] == [
        'metadata.labels[team] = "a"  MPI',
        'data[hostfile] = "x"  MPI ← spec.trainer.numNodes',
        'data[more] = "y"  MPI',
        'spec.minResources[cpu] = "1"  MPI ← the pods',
    ]
    assert trace.settings_of(bare, bare.manifest) == []


def test_removed_values_are_listed_last() -> None:
    document = {"a": {"b": 1, "c": 2}, "d": 4}
    with planning(document) as trace, trace.changes_of("Torch"):
        del document["a"]["b"]
        document["d"] = 5
        trace.note("a", "field")
    assert explained_lines(trace) == ["d = 5  Torch", "a.b removed  Torch ← field"]


def test_removed_value_has_the_source_of_the_following_note() -> None:
    document: Any = {"pod": {"a": 1, "b": 1}}
    with planning(document) as trace, trace.changes_of("TrainJob"):
        del document["pod"]["a"]
        trace.note("pod", "overrides[0]")
        document["pod"]["b"] = 2
        trace.note("pod", "overrides[1]")
    assert explained_lines(trace) == [
        "pod.b = 2  TrainJob ← overrides[1]",
        "pod.a removed  TrainJob ← overrides[0]",
    ]


def test_restructured_value_is_not_removed() -> None:
    document: Any = {"env": [], "a": {"b": 1}}
    with planning(document) as trace, trace.changes_of("Torch"):
        document["env"] = [{"name": "A", "value": "1"}]
        document["a"] = {}
    assert explained_lines(trace) == ['env[A] = "1"  Torch', "a = {}  Torch"]


def test_integer_one_differs_from_true() -> None:
    document: Any = {"a": 1, "b": ["x"]}
    with planning(document) as trace, trace.changes_of("Torch"):
        document["a"] = True
        document["b"].append("y")
    assert explained_lines(trace) == ["a = true  Torch", 'b = ["x","y"]  Torch']


def test_object_is_attributed_to_the_plugin_that_built_it() -> None:
    first, second = (PlannedObject(CONFIG_MAPS, {"metadata": {"name": "n"}}) for _ in range(2))
    trace = Explanation()
    for plugin, planned in (("First", first), ("Second", second)):
        with trace.changes_of(plugin):
            trace.built([planned])
    assert [trace.builder_of(first), trace.builder_of(second)] == ["First", "Second"]
