"""Objects as text: YAML and JSON that are the same each time, and the difference of two sets."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any

import yaml

Object = Mapping[str, Any]
Identity = tuple[str, str, str]  # of an object: group, kind and key
# What is a word here and for PyYAML, and a number or truth value for other readers of YAML.
_AMBIGUOUS = re.compile(r"[yYnN]|[-+]?\.?[0-9][-+.:_0-9a-zA-Z]*")

# Characters that tell a terminal what to do, or where a line ends, instead of being seen.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """The text on one line, with what cannot be seen as an escape: documents hold anything."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if unicodedata.category(each) in _UNSEEN else each
        for each in text
    )


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes every value out, and text of several lines as such."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _AMBIGUOUS.fullmatch(text) else None
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _represent_text)


def as_yaml(objects: Iterable[Object]) -> str:
    """The objects as YAML documents."""
    return "---\n".join(_dumped(each, sort_keys=False) for each in objects)


def as_json(objects: Sequence[Object]) -> str:
    """The objects as one List."""
    whole = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def difference(earlier: Iterable[Object], now: Iterable[Object], file: str) -> str:
    """What has changed in which object, as `diff -u` would show it; empty if nothing has."""
    before, after = _by_identity(earlier), _by_identity(now)
    return "".join(
        line
        for identity in {**after, **before}
        for line in _lines(identity, before.get(identity), after.get(identity), file)
    )


def _lines(
    identity: Identity, before: Object | None, after: Object | None, file: str
) -> Iterator[str]:
    _, kind, key = identity
    old, new = _sorted_lines(before), _sorted_lines(after)
    subject = f"{kind} {key}"
    return unified_diff(old, new, visible(f"{subject} in {file}"), visible(f"{subject} now"))


def _sorted_lines(manifest: Object | None) -> list[str]:
    return _dumped(manifest, sort_keys=True).splitlines(keepends=True) if manifest else []


def _by_identity(objects: Iterable[Object]) -> dict[Identity, Object]:
    return {_identity(each): each for each in objects}


def _identity(manifest: Object) -> Identity:
    metadata = manifest["metadata"]
    namespace, name = metadata.get("namespace"), metadata["name"]
    key = f"{namespace}/{name}" if namespace else name
    return manifest["apiVersion"].partition("/")[0], manifest["kind"], key


def _dumped(manifest: Object, *, sort_keys: bool) -> str:
    text: str = yaml.dump(
        manifest,
        Dumper=_Dumper,
        sort_keys=sort_keys,
        allow_unicode=True,
        width=2**31 - 1,  # lines are not broken: a diff would not know them again
    )
    return text
