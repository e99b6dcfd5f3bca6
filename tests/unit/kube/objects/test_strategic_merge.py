"""Each rule of a strategic merge; integration tests compare with the API server."""

from copy import deepcopy
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.objects import strategic_merge as merging
from kftrainer.kube.objects.strategic_merge import (
    StrategicMergeError,
    merge_in_place,
    retain_sources,
    strategic_merge,
)
from tests.support.pod_templates import Object, override_of, patch_of, template
from tests.support.scaling_inputs import Compared

randoms = st.randoms(use_true_random=True)  # a template takes too much chance to be shrunk
scalars = st.integers() | st.text("ab") | st.booleans()
trees = st.recursive(
    st.none() | scalars | st.lists(scalars, max_size=2),
    lambda children: st.dictionaries(st.sampled_from("wxyz"), children, max_size=3),
)
objects = st.dictionaries(st.sampled_from("wxyz"), trees)
keys = st.lists(st.sampled_from("abcdefgh"), unique=True)


def pod(**spec: Any) -> Object:
    return {"spec": spec}


def main(**fields: Any) -> Object:
    return pod(containers=[{"name": "main", **fields}])


def secrets(names: str) -> Object:
    return pod(imagePullSecrets=[{"name": name} for name in names.split()])


def merged_secrets(original: str, patch: Object) -> str:
    result = strategic_merge(secrets(original), patch)
    return " ".join(each["name"] for each in result["spec"]["imagePullSecrets"])


# Objects.


def test_objects_are_merged_field_by_field() -> None:
    original = {"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"hostname": "x"}}
    patch = {"metadata": {"labels": {"b": "3", "c": "4"}}}
    assert strategic_merge(original, patch) == {
        "metadata": {"labels": {"a": "1", "b": "3", "c": "4"}},
        "spec": {"hostname": "x"},
    }


def test_null_deletes_an_existing_value_and_adds_nothing() -> None:
    original = pod(nodeSelector={"a": "1", "b": "2"}, tolerations=[{}])
    patch = pod(nodeSelector={"a": None, "x": None}, tolerations=None, affinity={"y": None})
    assert strategic_merge(original, patch) == pod(nodeSelector={"b": "2"}, affinity={})


def test_an_object_can_be_replaced() -> None:
    patch = pod(nodeSelector={"$patch": "replace", "c": "3"})
    assert strategic_merge(pod(nodeSelector={"a": "1"}), patch) == pod(nodeSelector={"c": "3"})


def test_a_deleted_object_is_left_empty() -> None:
    patch = pod(nodeSelector={"$patch": "delete", "c": "3"})
    assert strategic_merge(pod(nodeSelector={"a": "1"}), patch) == pod(nodeSelector={})


@pytest.mark.parametrize("directive", ["replace", "delete", "merge"])
def test_directives_for_missing_values_add_nothing(directive: str) -> None:
    patch = pod(nodeSelector={"$patch": directive, "a": "1"}, volumes=[{"$patch": directive}])
    assert strategic_merge(pod(), patch) == pod(volumes=[])


def test_only_retained_keys_stay() -> None:
    original = pod(affinity={"nodeAffinity": {}, "podAffinity": {"x": 1}})
    patch = pod(affinity={"$retainKeys": ["podAffinity", "other"], "podAffinity": {"y": 2}})
    assert strategic_merge(original, patch) == pod(affinity={"podAffinity": {"x": 1, "y": 2}})


def test_value_of_another_type_is_replaced() -> None:
    assert strategic_merge(pod(affinity=3), pod(affinity={"a": None})) == pod(affinity={})


# Lists.


def test_a_list_that_is_not_merged_is_replaced() -> None:
    original = main(args=["a", "b"]) | {"x": [{"name": "a", "b": 1}]}
    patch = main(args=["c"]) | {"x": [{"name": "a"}]}
    assert strategic_merge(original, patch) == patch


def test_entries_with_the_same_merge_key_are_merged() -> None:
    original = main(image="i", env=[{"name": "A", "value": "1"}], ports=[{"containerPort": 80}])
    patch = main(env=[{"name": "A", "value": ""}], ports=[{"containerPort": 80, "name": "http"}])
    assert strategic_merge(original, patch) == main(
        image="i",
        env=[{"name": "A", "value": ""}],
        ports=[{"containerPort": 80, "name": "http"}],
    )


def test_port_is_not_compared_as_a_boolean() -> None:
    original = main(ports=[{"containerPort": 1}])
    result = strategic_merge(
        original, main(ports=[{"containerPort": True}, {"containerPort": 1.0}])
    )
    assert len(result["spec"]["containers"][0]["ports"]) == 3


@pytest.mark.parametrize(
    ("original", "patch", "result"),
    [
        ("S1 S2", "S3 S1", "S3 S1 S2"),
        ("data tmp", "extra tmp", "extra data tmp"),
        ("a", "b", "b a"),
        ("a b c d", "d b", "a c d b"),
        ("a b c", "x c y a", "x b c y a"),
        ("a b", "", "a b"),
    ],
)
def test_new_entries_precede_those_not_in_the_patch(original: str, patch: str, result: str) -> None:
    assert merged_secrets(original, secrets(patch)) == result
    finalizers = strategic_merge(
        {"metadata": {"finalizers": original.split()}}, {"metadata": {"finalizers": patch.split()}}
    )
    assert finalizers == {"metadata": {"finalizers": result.split()}}


@given(keys, keys)
def test_unpatched_entries_are_ordered_among_patched_ones_by_the_rule(
    original: list[str], patch: list[str]
) -> None:
    unpatched, names_in_patch = [each for each in original if each not in patch], list(patch)
    wanted = []
    while unpatched and names_in_patch:
        place = original.index(names_in_patch[0]) if names_in_patch[0] in original else -1
        wanted.append(
            (unpatched if original.index(unpatched[0]) < place else names_in_patch).pop(0)
        )
    wanted += unpatched + names_in_patch
    assert merged_secrets(" ".join(original), secrets(" ".join(patch))) == " ".join(wanted)


def test_entries_with_the_same_merge_key_are_adjacent_and_the_first_is_patched() -> None:
    ports = [{"containerPort": 53, "name": "a"}, {"containerPort": 80}, {"containerPort": 53}]
    patch = main(ports=[{"containerPort": 1}])
    first, http, second = ports
    assert strategic_merge(main(ports=ports), patch) == main(
        ports=[{"containerPort": 1}, first, second, http]
    )
    patch = main(ports=[{"containerPort": 53, "name": "b"}])
    assert strategic_merge(main(ports=ports), patch) == main(
        ports=[{"containerPort": 53, "name": "b"}, second, http]
    )


def test_new_entry_is_added_unchanged_without_directives() -> None:
    new = {"name": "new", "image": None, "env": [{"name": "A", "$patch": "delete"}]}
    result = strategic_merge(main(), pod(containers=[new]))
    assert result["spec"]["containers"][0] == {"name": "new", "image": None, "env": [{"name": "A"}]}


def test_an_entry_can_be_deleted() -> None:
    patch = pod(imagePullSecrets=[{"name": "b", "$patch": "delete"}, {"name": "x"}])
    assert merged_secrets("a b c", patch) == "x a c"


def test_a_merged_list_can_be_replaced() -> None:
    patch = pod(imagePullSecrets=[{"name": "x"}, {"$patch": "replace"}, {"name": "a"}])
    assert merged_secrets("a b c", patch) == "x a"


def test_an_order_can_be_set() -> None:
    order = {"$setElementOrder/imagePullSecrets": [{"name": "d"}, {"name": "x"}, {"name": "b"}]}
    assert merged_secrets("a b c d", pod(**order)) == "a c d b"
    assert merged_secrets("a b c d", pod(imagePullSecrets=[{"name": "x"}], **order)) == "a c d x b"
    assert strategic_merge(pod(), pod(**order)) == pod()
    new = pod(imagePullSecrets=[{"name": "x"}, {"name": "b"}], **order)
    assert strategic_merge(pod(), new) == secrets("x b")


def test_with_an_order_new_entries_replace_deleted_ones() -> None:
    patch = pod(imagePullSecrets=[{"name": "x"}, {"name": "a", "$patch": "delete"}])
    order = {"$setElementOrder/imagePullSecrets": [{"name": "x"}]}
    assert merged_secrets("a b", patch) == "x b"
    assert merged_secrets("a b", pod(**patch["spec"], **order)) == "b x"


def test_scalars_can_be_deleted_and_are_not_doubled() -> None:
    original = {"metadata": {"finalizers": ["a", "b", "c"]}}
    patch = {"metadata": {"finalizers": ["c", "d"], "$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert strategic_merge(original, patch) == {"metadata": {"finalizers": ["b", "c", "d"]}}


def test_entry_deleted_and_added_in_one_patch_is_removed() -> None:
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["a", "b"]}}
    assert strategic_merge({"metadata": {}}, patch) == {"metadata": {"finalizers": ["b"]}}


# Refusals.


@pytest.mark.parametrize(
    ("path", "message", "patch"),
    [
        ("spec.containers[0]", "has no 'name', by which its list is merged", pod(containers=[{}])),
        ("spec.containers[1]", "must be an object", pod(containers=[{"name": "a"}, 3])),
        ("spec.containers", "must be a list", pod(containers={"name": "a"})),
        ("spec.volumes", "must be a list", pod(volumes="data")),
        ("spec.hostAliases[0]", "has no 'ip', by which its list is merged", pod(hostAliases=[{}])),
        (
            "spec.containers[0].env[1]",
            "has no 'name', by which its list is merged",
            main(env=[{"name": "A"}, {"name": None}]),
        ),
        (
            "spec.containers[0].env[0]",
            "has an unknown $patch: 'merge'",
            main(env=[{"name": "A", "$patch": "merge"}]),
        ),
        ("the patch", "has an unknown $patch: 3", {"$patch": 3}),
        (
            "spec.containers[0]",
            "has 'image', which is not in its $retainKeys",
            main(image="i", **{"$retainKeys": ["name"]}),
        ),
        ("spec.$retainKeys", "must be a list", pod(**{"$retainKeys": {}})),
        (
            "metadata.finalizers[0]",
            "must be a scalar",
            {"metadata": {"finalizers": [{"name": "a"}]}},
        ),
        (
            "metadata.$deleteFromPrimitiveList/finalizers",
            "must be a list",
            {"metadata": {"$deleteFromPrimitiveList/finalizers": None}},
        ),
        (
            "metadata.$deleteFromPrimitiveLists/finalizers",
            "must be $deleteFromPrimitiveList/<field>",
            {"metadata": {"$deleteFromPrimitiveLists/finalizers": []}},
        ),
        (
            "spec.$setElementOrder/",
            "must be $setElementOrder/<field>",
            pod(**{"$setElementOrder/": []}),
        ),
        (
            "spec.$setElementOrder/tolerations",
            "is not allowed: the list is replaced, not merged",
            pod(**{"$setElementOrder/tolerations": [{"key": "a"}]}),
        ),
        (
            "spec.volumes[0]",
            "is missing in $setElementOrder/volumes or out of order",
            pod(volumes=[{"name": "a"}], **{"$setElementOrder/volumes": []}),
        ),
    ],
)
def test_invalid_patch_is_rejected(path: str, message: str, patch: Object) -> None:
    original = main(env=[{"name": "A"}]) | {"metadata": {"finalizers": ["a"]}}
    with pytest.raises(StrategicMergeError) as caught:
        strategic_merge(original, patch)
    assert str(caught.value) == f"{path} {message}"
    assert caught.value.path == ("" if path == "the patch" else path)


def test_invalid_original_is_reported_as_such() -> None:
    with pytest.raises(StrategicMergeError, match=r"^spec\.volumes\[1\] of the original has no"):
        strategic_merge(pod(volumes=[{"name": "a"}, {}]), pod(volumes=[]))


def test_another_schema_can_be_named() -> None:
    result = strategic_merge({"ports": [{"containerPort": 1}]}, {"ports": []}, "Container")
    assert result == {"ports": [{"containerPort": 1}]}
    with pytest.raises(ValueError, match="no merge keys for 'Pod'"):
        strategic_merge({}, {}, "Pod")


# Properties.


def freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: freeze(each) for key, each in value.items()})
    return [freeze(each) for each in value] if isinstance(value, list) else value


def mutate(value: Any) -> None:
    for each in list(value.values()) if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            mutate(each)
    value.clear()


def plain(value: Any) -> Any:
    """The patch without nulls and directives."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if v is not None and not k.startswith("$")}
        return {key: plain(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [plain(e) for e in value if not (isinstance(e, dict) and "$patch" in e)]
    return value


@given(randoms)
def test_an_empty_patch_changes_nothing(random: Random) -> None:
    original = template(random)
    assert strategic_merge(original, {}) == original


@given(randoms)
def test_the_result_may_be_written_to_and_the_inputs_are_never(random: Random) -> None:
    original = template(random)
    patch = patch_of(random, original)
    before = deepcopy((original, patch))
    result = strategic_merge(freeze(original), freeze(patch))
    assert result == strategic_merge(original, patch)
    mutate(strategic_merge(original, patch))
    mutate(strategic_merge(original, retain_sources(original, patch)))
    assert (original, patch) == before


def outcome(original: Object, patch: Object) -> object:
    """The result, or what is wrong with the patch."""
    try:
        return strategic_merge(original, retain_sources(original, patch))
    except StrategicMergeError as error:
        return str(error)


@given(randoms)
def test_lists_of_distinct_names_are_merged_as_other_lists_are(random: Random) -> None:
    original = template(random)
    patches = patch_of(random, original), override_of(random, original)
    found = [outcome(original, patch) for patch in patches]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "_merge_named", lambda *_: None)
        assert found == [outcome(original, patch) for patch in patches]


@given(randoms)
def test_merging_in_place_gives_the_same_result(random: Random) -> None:
    original = template(random)
    patch = override_of(random, original)
    expected = strategic_merge(original, patch)
    before = deepcopy(patch)
    result = merge_in_place(deepcopy(original), patch)
    assert result == expected
    mutate(result)
    assert patch == before


@given(randoms)
def test_patch_without_directives_is_idempotent(
    random: Random,
) -> None:
    original = template(random)
    patch = plain(patch_of(random, original))
    once = strategic_merge(original, patch)
    assert strategic_merge(once, patch) == once


@given(randoms)
def test_no_directive_remains(random: Random) -> None:
    original = template(random)
    assert "'$" not in repr(strategic_merge(original, patch_of(random, original))).replace(
        "'$(HOME)'", ""
    )


@given(objects, objects)
def test_where_nothing_is_merged_by_key_it_is_a_json_merge_patch(
    original: Object, patch: Object
) -> None:
    def reference(target: Any, change: Any) -> Any:
        if not isinstance(change, dict):
            return change
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in change.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = reference(result.get(key), value)
        return result

    assert strategic_merge(original, patch) == reference(original, patch)


@given(
    st.dictionaries(st.text("abc"), scalars), st.dictionaries(st.text("xyz", min_size=1), scalars)
)
def test_objects_with_nothing_in_common_are_united(original: Object, patch: Object) -> None:
    assert strategic_merge(original, patch) == original | patch


# Sources.


def apply(original: Object, patch: Object) -> Object:
    return strategic_merge(original, retain_sources(original, patch))


def test_volume_of_another_kind_replaces_the_old_one() -> None:
    original = pod(volumes=[{"name": "data", "emptyDir": {"medium": "Memory"}}])
    patch = pod(volumes=[{"name": "data", "configMap": {"name": "c"}}, {"name": "new"}])
    assert retain_sources(original, patch) == pod(
        volumes=[
            {"name": "data", "configMap": {"name": "c"}, "$retainKeys": ["configMap", "name"]},
            {"name": "new"},
        ]
    )
    assert apply(original, patch) == patch


def test_a_volume_of_the_same_kind_is_merged() -> None:
    original = pod(volumes=[{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}])
    patch = pod(volumes=[{"name": "data", "emptyDir": {"medium": "Memory"}}])
    assert retain_sources(original, patch) == patch
    assert apply(original, patch) == pod(
        volumes=[{"name": "data", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}}]
    )


def test_a_volume_without_a_source_keeps_the_old() -> None:
    original = pod(volumes=[{"name": "data", "emptyDir": {}}])
    assert apply(original, pod(volumes=[{"name": "data"}])) == original


VALUE: Object = {"value": "1"}
EMPTY: Object = {"value": ""}
FIELD: Object = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
SECRET: Object = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


@pytest.mark.parametrize("new", [VALUE, EMPTY, FIELD, SECRET])
@pytest.mark.parametrize("old", [VALUE, EMPTY, FIELD, SECRET])
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_variable_has_the_new_source_alone(field: str, old: Object, new: Object) -> None:
    def with_variable(source: Object) -> Object:
        return pod(**{field: [{"name": "main", "env": [{"name": "A", **source}]}]})

    assert apply(with_variable(old), with_variable(new)) == with_variable(new)


def test_claim_on_another_kind_of_resource_replaces_the_old_one() -> None:
    original = pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "a"}])
    patch = pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "b"}])
    assert apply(original, patch) == patch


def test_directives_are_never_overridden() -> None:
    original = pod(volumes=[{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}])
    patch = pod(
        volumes=[
            {"name": "data", "$patch": "delete", "x": 1},
            {"name": "tmp", "hostPath": {}, "$retainKeys": ["name", "hostPath", "emptyDir"]},
        ]
    )
    assert retain_sources(original, patch) == patch


@pytest.mark.parametrize(
    "patch",
    [{}, {"spec": None}, pod(volumes=3), pod(volumes=[3, {}]), pod(containers={"name": "a"})],
)
def test_retain_sources_returns_invalid_patches_unchanged(patch: Object) -> None:
    original = pod(volumes=[{"name": "data", "emptyDir": {}}], containers=[{"name": "a"}])
    assert retain_sources(original, patch) == patch


@given(randoms)
def test_after_an_override_everything_has_one_source(random: Random) -> None:
    original = template(random)
    result = apply(original, override_of(random, original))["spec"]
    assert all(len(each) == 2 for each in result["volumes"])
    variables = [each for container in result["containers"] for each in container.get("env", [])]
    assert all(len(each) == 2 for each in variables)
    assert all(len(each.get("valueFrom", [1])) == 1 for each in variables)


def test_entries_of_long_lists_are_not_compared_with_each_other() -> None:
    volumes = [{"name": Compared(f"v{index}"), "emptyDir": {}} for index in range(1000)]
    template = {"spec": {"volumes": volumes}}
    Compared.times = 0
    assert strategic_merge(template, retain_sources(template, template)) == template
    assert Compared.times < 50_000
