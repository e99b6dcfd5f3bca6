"""Prints objects as deterministic YAML and JSON, and the difference of two sets."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any

import yaml

Object = Mapping[str, Any]
Identity = tuple[str, str, str]  # group, kind and key
# Strings here and in PyYAML, but numbers or booleans in other YAML parsers.
_AMBIGUOUS = re.compile(r"[yYnN]|[-+]?\.?[0-9][-+.:_0-9a-zA-Z]*")

# Categories of control characters and line separators, which a terminal would interpret.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return the text on one line with control characters escaped, as documents are untrusted."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if unicodedata.category(each) in _UNSEEN else each
        for each in text
    )


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML dumper without aliases; multi-line text is written as a block."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _AMBIGUOUS.fullmatch(text) else None
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _represent_text)


def as_yaml(objects: Iterable[Object]) -> str:
    """Return the objects as YAML documents."""
    return "---\n".join(_dumped(each, sort_keys=False) for each in objects)


def as_json(objects: Sequence[Object]) -> str:
    """Return the objects as one JSON List."""
    whole = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def difference(earlier: Iterable[Object], now: Iterable[Object], file: str) -> str:
    """Return the changes per object as a unified diff; empty if there are none."""
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


def unified(before: Object | None, after: Object | None, old: str, new: str) -> str:
    """Return the difference of two objects as a unified diff; empty if they are equal."""
    lines = unified_diff(_sorted_lines(before), _sorted_lines(after), visible(old), visible(new))
    return "".join(lines)


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
        width=2**31 - 1,  # no line breaks, which would make diffs unstable
    )
    return text
