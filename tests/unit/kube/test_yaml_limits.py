"""Limits on the expansion of aliases and merge keys; documents without many of them pass."""

import pytest
import yaml

from kftrainer.kube.yaml_limits import (
    MAX_DEPTH,
    MAX_REPEATED_CHARACTERS,
    MAX_REPEATED_VALUES,
    ExpansionError,
    check_expansion,
)


def composed(text: str) -> yaml.Node:
    node: yaml.Node = yaml.compose(text, Loader=yaml.SafeLoader)
    return node


def levels(item: str, of: str) -> str:
    """Return seven lines, each of which refers to the previous one ten times."""
    lines = [f"a0: &a0 {item}"]
    for at in range(1, 8):
        aliases = ", ".join([f"*a{at - 1}"] * 10)
        lines.append(f"a{at}: &a{at} {of % aliases}")
    return "\n".join(lines)


def chain(of: str) -> str:
    """Return a list in which each item refers to the previous one."""
    items = [f"- &a{at} {of % (at - 1)}" for at in range(1, 2 * MAX_DEPTH)]
    return "\n".join(["- &a0 {x: 1}", *items])


REPEATED = "\n".join(["- &text " + "x" * 2**20, *["- *text"] * 70])


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        pytest.param(levels("[x]", "[%s]"), 7, f"{MAX_REPEATED_VALUES} values", id="aliases"),
        pytest.param(
            levels("{x: 1}", "{<<: [%s]}"), 7, f"{MAX_REPEATED_VALUES} values", id="merge-keys"
        ),
        pytest.param(REPEATED, 1, f"{MAX_REPEATED_CHARACTERS} characters", id="text"),
        pytest.param(chain("[*a%d]"), MAX_DEPTH - 1, f"{MAX_DEPTH} levels", id="depth"),
        pytest.param(chain("{<<: *a%d}"), MAX_DEPTH - 1, f"{MAX_DEPTH} levels", id="merge-depth"),
        pytest.param("x: 1\na: &a\n- b: *a\n", 3, "a value that contains the alias", id="cycle"),
        pytest.param("a: &a\n  <<: *a\n", 2, "a value that contains the alias", id="merged-cycle"),
    ],
)
def test_expansion_beyond_a_limit_is_rejected_with_its_line(
    text: str, line: int, problem: str
) -> None:
    with pytest.raises(ExpansionError, match=problem) as raised:
        check_expansion(composed(text))
    mark = raised.value.problem_mark
    assert mark is not None
    assert mark.line + 1 == line


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n", id="anchors"),
        pytest.param("- &env [a, b, c]\n" + "- *env\n" * 10_000, id="many-aliases"),
        pytest.param("x: " + "y" * 2**20, id="long-text"),
    ],
)
def test_ordinary_documents_pass(text: str) -> None:
    node = composed(text)
    if node is not None:
        check_expansion(node)


def test_large_document_without_aliases_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kftrainer.kube.yaml_limits.MAX_REPEATED_VALUES", 10)
    check_expansion(composed("[" + "a, " * 1_000 + "a]"))
