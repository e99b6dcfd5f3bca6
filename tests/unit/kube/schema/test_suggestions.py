import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.schema.suggestions import closest, distance

KNOWN = ("image", "numNodes", "runtimeRef", "podTemplateOverrides", "env", "args", "suspend")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("imge", "image"),
        ("iamge", "image"),
        ("imagee", "image"),
        ("numnodes", "numNodes"),
        ("numNode", "numNodes"),
        ("podTemplateOverride", "podTemplateOverrides"),
        ("runtimeref", "runtimeRef"),
        ("runtimePatches", None),
        ("activeDeadlineSeconds", None),
        ("colour", None),
        ("nodes", None),
        ("x", None),
        ("", None),
    ],
)
def test_only_misspellings_get_a_suggestion(name: str, suggestion: str | None) -> None:
    assert closest(name, KNOWN) == suggestion


def test_no_known_names_give_no_suggestion() -> None:
    assert closest("image", ()) is None


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_distance_is_symmetric_and_zero_for_equal_words(one: str, other: str) -> None:
    limit = 12
    assert distance(one, other, limit) == distance(other, one, limit)
    assert (distance(one, other, limit) == 0) == (one == other)
