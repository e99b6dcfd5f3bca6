import io
from pathlib import Path

import pytest

from kftrainer.cli.manifests.documents import NOT_AN_OBJECT, read


def found(*sources: object) -> list[tuple[str, object]]:
    result = read(map(str, sources))
    assert result.errors == []
    return [(str(each.place), each.content) for each in result.documents]


def test_documents_of_files_in_the_order_of_the_command(tmp_path: Path) -> None:
    one, two = tmp_path / "1.yaml", tmp_path / "2.txt"
    one.write_text("a: 1\n---\n---\n# nothing\n---\nb: 2\n")
    two.write_text('{"c": 3}')
    assert found(two, one) == [
        (f"{two}:1", {"c": 3}),
        (f"{one}:1", {"a": 1}),
        (f"{one}:6", {"b": 2}),
    ]


def test_folders_are_read_with_all_that_is_below(tmp_path: Path) -> None:
    for name in ("b/x.yml", "b/a/x.json", "a.yaml", "c.YAML", "notes.txt", ".hidden/x.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "b" / "round").symlink_to(tmp_path)
    (tmp_path / ".x.yaml").write_text("x: [")
    assert [place for place, _ in found(tmp_path)] == [
        f"{tmp_path}/a.yaml:1",
        f"{tmp_path}/b/a/x.json:1",
        f"{tmp_path}/b/x.yml:1",
    ]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffa: ä\n".encode())))
    assert found("-") == [("<stdin>:1", {"a": "ä"})]


def test_json_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"a": 1}', encoding="utf-8-sig")
    assert found(file) == [(f"{file}:1", {"a": 1})]


def test_lists_are_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(
        "apiVersion: v1\nkind: List\nitems:\n- kind: A\n- kind: List\n  items:\n  - kind: B\n"
        "---\nkind: List\nitems: []\n"
    )
    assert found(file) == [(f"{file}:4", {"kind": "A"}), (f"{file}:7", {"kind": "B"})]


def test_items_of_a_typed_list_inherit_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text('{"apiVersion": "g/v1", "kind": "JobList", "items": [{"a": 1}]}')
    assert found(file) == [(f"{file}:1", {"apiVersion": "g/v1", "kind": "Job", "a": 1})]


def test_kind_named_like_a_list_is_not_a_list(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("kind: WishList\nitems: {}\n")
    assert found(file) == [(f"{file}:1", {"kind": "WishList", "items": {}})]


def test_unreadable_document_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    files = {
        "1.yaml": b"a: 1\na: 2\n",
        "2.json": b"a: 1\n",
        "3.yaml": b"\xff\xfe",
        "4.yaml": b"# a list\n- a\n---\ntext\n",
        "5.yaml": b"kind: List\nitems:\n- 3\n",
        "6.yaml": b"good: true\n",
        "7.yaml": b"\nkind: List\nitems: {kind: A}\n---\nkind: List\n",
        "8.yaml": b"good: true\n---\na: 0x_\n",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "empty").mkdir()
    result = read([str(tmp_path), f"{tmp_path}/nonesuch.yaml", f"{tmp_path}/empty"])
    assert [each.content for each in result.documents] == [{"good": True}] * 2
    assert [str(each).removeprefix(f"{tmp_path}/") for each in result.errors] == [
        "1.yaml:2: duplicate key 'a'",
        "2.json:1: not valid JSON: Expecting value",
        "3.yaml: not UTF-8 text",
        f"4.yaml:2: {NOT_AN_OBJECT}",
        f"4.yaml:4: {NOT_AN_OBJECT}",
        f"5.yaml:3: {NOT_AN_OBJECT}",
        "7.yaml:2: items: must be a list",
        "7.yaml:5: items: must be a list",
        "8.yaml:3: not valid YAML: '0x_' is not an integer",
        "nonesuch.yaml: no such file or directory",
        "empty: contains no .yaml, .yml or .json file",
    ]
