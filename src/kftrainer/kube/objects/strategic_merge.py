"""Strategic merge patches of pod templates, with the API server's semantics. Pure.

Objects are merged field by field and lists are replaced, unless Kubernetes' schema marks a list as
merged: entry by entry, identified by a merge key, or as a set if the entries are scalars. Null
deletes. Directives change this: `$patch`, `$retainKeys`, `$setElementOrder/<list>` and
`$deleteFromPrimitiveList/<list>`. Patches that the server cannot merge are rejected, and so are
some meaningless directives on which the server fails or which it ignores.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeGuard

import orjson

TABLE = "pod_template_merge_keys.json"
PATCH = "$patch"
RETAIN_KEYS = "$retainKeys"
SET_ORDER = "$setElementOrder"
DELETE_FROM = "$deleteFromPrimitiveList"

Identity = tuple[type, Hashable]


class StrategicMergeError(ValueError):
    """A patch that cannot be applied; `path` is the location in the patch."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path or 'the patch'} {message}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Rule:
    """How a field is patched: the type of its value, and whether it is a merged list."""

    schema: str = ""
    merged: bool = False
    key: str = ""
    retains_keys: bool = False


DEFAULT_RULE = Rule()


class Keyed(NamedTuple):
    """An entry of a list, its identity and its path."""

    identity: Identity
    entry: Any
    path: str


class Combined(NamedTuple):
    """Two lists combined but not yet ordered: first the remaining original, then new entries."""

    entries: list[Keyed]
    left: int
    patched: list[Identity]


def strategic_merge(
    original: Mapping[str, Any], patch: Mapping[str, Any], schema: str = "PodTemplateSpec"
) -> dict[str, Any]:
    """Return the original with the patch applied; shares no mutable data with either."""
    return merge_in_place(_copy(original), patch, schema)


def merge_in_place(
    original: dict[str, Any], patch: Mapping[str, Any], schema: str = "PodTemplateSpec"
) -> dict[str, Any]:
    """Apply the patch to the original in place and return the result.

    The time depends on the patch and on the lists that it changes, not on the rest. Shares nothing
    with the patch. After a StrategicMergeError the original must not be used.
    """
    if schema not in _rules():
        raise ValueError(f"there are no merge keys for {schema!r}")
    return _merge_objects(original, patch, schema, "")


def retain_sources(original: Mapping[str, Any], patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod template patch with $retainKeys where it replaces a source.

    Without that, a patch that changes an `emptyDir` to a `configMap`, or a `value` to a
    `valueFrom`, results in both, which is invalid in a pod. The same kind of source is still merged
    field by field. The result shares unchanged parts with the patch.
    """
    spec, old_spec = patch.get("spec"), original.get("spec")
    if not (_is_object(spec) and _is_object(old_spec)):
        return patch
    rules = _rules()["PodSpec"]
    changed: dict[str, Any] = {}
    for field in spec:
        rule = rules.get(field)
        if rule is not None:
            entries = _retaining(old_spec.get(field), spec[field], rule)
            if entries is not None:
                changed[field] = entries
    return {**patch, "spec": {**spec, **changed}} if changed else patch


def _retaining(old: Any, new: Any, rule: Rule) -> list[Any] | None:
    """Return the list with $retainKeys in entries that need it; None if there are none."""
    changed: dict[int, Any] = {}
    for index, old_entry, entry in _same_entries(old, new, rule.key):
        prepared = _retain_source(old_entry, entry) if rule.retains_keys else entry
        if "env" in entry:
            env = _retaining_env(old_entry.get("env"), entry["env"])
            prepared = prepared if env is None else {**prepared, "env": env}
        if prepared is not entry:
            changed[index] = prepared
    return _with(new, changed)


def _retaining_env(old: Any, new: Any) -> list[Any] | None:
    changed: dict[int, Any] = {}
    for index, old_variable, variable in _same_entries(old, new, "name"):
        prepared = _retain_source(old_variable, variable)
        if "valueFrom" in variable:
            source = _retain_source(old_variable.get("valueFrom"), variable["valueFrom"])
            if source is not variable["valueFrom"]:
                prepared = {**prepared, "valueFrom": source}
        if prepared is not variable:
            changed[index] = prepared
    return _with(new, changed)


def _with(entries: list[Any], changed: Mapping[int, Any]) -> list[Any] | None:
    if not changed:
        return None
    return [changed.get(index, entry) for index, entry in enumerate(entries)]


def _same_entries(old: Any, new: Any, key: str) -> Iterator[tuple[int, Any, Any]]:
    """Yield the entries that both lists have; malformed ones are rejected by the merge."""
    if not (isinstance(new, list) and new and isinstance(old, list) and old):
        return
    known = _first_by_key(old, key)
    for index, entry in enumerate(new):
        if _is_object(entry):
            wanted = entry.get(key)
            if isinstance(wanted, Hashable) and wanted in known:
                yield index, known[wanted], entry


def _first_by_key(entries: list[Any], key: str) -> Mapping[Any, Any]:
    try:  # succeeds for nearly all lists
        return {each[key]: each for each in reversed(entries)}
    except (KeyError, TypeError):
        whole = [each for each in entries if _is_object(each) and key in each]
        return {e[key]: e for e in reversed(whole) if isinstance(e[key], Hashable)}


def _is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return type(value) is dict or isinstance(value, Mapping)


def _retain_source(old: Any, new: Any) -> Any:
    """Return the new object, with $retainKeys if it replaces a different source."""
    if not (_is_object(old) and _is_object(new)):
        return new
    if not (_adds_field(old, new) and _adds_field(new, old)):
        return new
    given = [key for key, value in new.items() if value is not None]
    if any(map(_is_directive, given)):
        return new
    return {**new, RETAIN_KEYS: sorted(given)}


def _adds_field(to: Mapping[str, Any], by: Mapping[str, Any]) -> bool:
    """Return whether `by` has a field that `to` does not have."""
    for key, value in by.items():  # noqa: SIM110  a generator is slower
        if value is not None and to.get(key) is None:
            return True
    return False


@cache
def _rules() -> Mapping[str, Mapping[str, Rule]]:
    table = orjson.loads((files("kftrainer.kube.objects") / TABLE).read_bytes())
    return {
        schema: {
            field: Rule(
                schema=entry.get("type", ""),
                merged=entry.get("list", False),
                key=entry.get("mergeKey", ""),
                retains_keys=entry.get("retainKeys", False),
            )
            for field, entry in fields.items()
        }
        for schema, fields in table.items()
    }


def _merge_objects(
    target: dict[str, Any], patch: Mapping[str, Any], schema: str, path: str
) -> dict[str, Any]:
    """Merge the patch into the target, which is modified."""
    rules = _rules().get(schema, {})
    if _may_direct(patch):
        return _merge_directed(target, patch, rules, path)
    for field, value in patch.items():
        rule = rules.get(field, DEFAULT_RULE)
        if type(value) is str and not rule.merged:
            target[field] = value
        else:
            _merge_field(target, field, value, rule, _join(path, field))
    return target


def _merge_directed(
    target: dict[str, Any], patch: Mapping[str, Any], rules: Mapping[str, Rule], path: str
) -> dict[str, Any]:
    """Merge an object that may have directives."""
    if PATCH in patch:
        return _replacement(patch, path)
    _drop_unretained(target, patch, path)
    ordered = _fields_named_by(SET_ORDER, patch, path)
    for field in ordered:
        _merge_in_order(target, patch, field, rules.get(field, DEFAULT_RULE), path)
    for field, value in patch.items():
        if field not in ordered and not _is_directive(field):
            _merge_field(target, field, value, rules.get(field, DEFAULT_RULE), _join(path, field))
    # The server processes fields in any order; deleting last makes the result definite.
    for field in _fields_named_by(DELETE_FROM, patch, path):
        _delete_scalars(target, patch, field, path)
    return target


def _may_direct(patch: Mapping[str, Any]) -> bool:
    """Return whether an object may have directives; those without are merged faster."""
    return "$" in "".join(patch)


def _replacement(patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    match patch[PATCH]:
        case "replace":
            return {key: _verbatim(each) for key, each in patch.items() if not _is_directive(key)}
        case "delete":
            return {}
        case other:
            raise StrategicMergeError(path, f"has an unknown $patch: {other!r}")


def _drop_unretained(target: dict[str, Any], patch: Mapping[str, Any], path: str) -> None:
    if RETAIN_KEYS not in patch:
        return
    place = _join(path, RETAIN_KEYS)
    retained = {each.entry for each in _keyed(_list(patch[RETAIN_KEYS], place), "", place)}
    for key, value in patch.items():
        if not (value is None or key in retained or _is_directive(key)):
            raise StrategicMergeError(path, f"has {key!r}, which is not in its $retainKeys")
    for key in target.keys() - retained:
        del target[key]


def _merge_field(target: dict[str, Any], field: str, value: Any, rule: Rule, path: str) -> None:
    if value is None:
        target.pop(field, None)
        return
    if rule.merged:
        _list(value, path)
    original = target.get(field)
    if isinstance(original, dict) and _is_object(value):
        target[field] = _merge_objects(original, value, rule.schema, path)
    elif isinstance(original, list) and isinstance(value, list):
        target[field] = _merge_lists(original, value, rule, path)
    elif _is_directed(value):
        target.pop(field, None)
    else:
        if rule.key:
            _keyed(value, rule.key, path)
        target[field] = _added(value)


def _merge_lists(original: list[Any], patch: list[Any], rule: Rule, path: str) -> list[Any]:
    if not rule.merged:
        return [_verbatim(each) for each in patch]
    if rule.key and (merged := _merge_named(original, patch, rule, path)) is not None:
        return merged
    combined = _combine(original, patch, rule, path)
    return _arrange(combined.entries, combined.patched, combined.left)


def _merge_named(original: list[Any], patch: list[Any], rule: Rule, path: str) -> list[Any] | None:
    """Merge lists with distinct names and no directives, the usual case; None for others.

    The result is the same as that of `_combine` and `_arrange`.
    """
    there, changes = _by_name(original, rule.key), _by_name(patch, rule.key)
    if there is None or changes is None:
        return None
    places = dict(zip(there, range(len(there)), strict=True))
    others = deque(
        [(places[name], entry) for name, entry in there.items() if name not in changes]
        if there.keys() - changes.keys()
        else ()
    )
    merged = []
    for index, (name, change) in enumerate(changes.items()):
        place = places.get(name, -1)
        while others and others[0][0] < place:
            merged.append(others.popleft()[1])
        if place < 0:
            merged.append(_verbatim(change))
        else:
            where = f"{path}[{index}]"
            merged.append(_merge_objects(there[name], change, rule.schema, where))
    merged += [entry for _, entry in others]
    return merged


def _by_name(entries: list[Any], key: str) -> dict[str, Any] | None:
    """Return the entries by name, in order; None if not all have a distinct name."""
    if set(map(type, entries)) != {dict}:
        return None if entries else {}
    try:
        named = {entry[key]: entry for entry in entries if PATCH not in entry}
    except (KeyError, TypeError):  # no name, or one that is not hashable
        return None
    are_names = len(named) == len(entries) and set(map(type, named)) == {str}
    return named if are_names else None


def _merge_in_order(
    target: dict[str, Any], patch: Mapping[str, Any], field: str, rule: Rule, path: str
) -> None:
    """Merge a list of the patch, if there is one, and order all entries as it specifies."""
    directive, path = _join(path, f"{SET_ORDER}/{field}"), _join(path, field)
    if not rule.merged:
        raise StrategicMergeError(directive, "is not allowed: the list is replaced, not merged")
    order = [each.identity for each in _keyed(patch[f"{SET_ORDER}/{field}"], rule.key, directive)]
    changes = _list(patch.get(field, []), path)
    not_yet_met = iter(order)
    for each in _keyed(changes, rule.key, path):
        if each.identity not in not_yet_met:
            raise StrategicMergeError(
                each.path, f"is missing in {SET_ORDER}/{field} or out of order"
            )
    if field in target:
        original = _list(target[field], path)
        # As many new entries as were deleted count as entries of the original: the server deletes
        # in place, and orders by the resulting positions.
        entries = _combine(original, changes, rule, path).entries
        target[field] = _arrange(entries, order, len(original))
    elif field in patch:
        target[field] = _arrange(_keyed(_added(changes), rule.key, path), order, 0)


def _delete_scalars(
    target: dict[str, Any], patch: Mapping[str, Any], field: str, path: str
) -> None:
    directive = f"{DELETE_FROM}/{field}"
    gone = {each.identity for each in _keyed(patch[directive], "", _join(path, directive))}
    path = _join(path, field)
    if field in target:
        present = _keyed(_list(target[field], path), "", path)
        target[field] = [each.entry for each in present if each.identity not in gone]


def _combine(original: list[Any], patch: list[Any], rule: Rule, path: str) -> Combined:
    standing = _keyed(original, rule.key, path, "of the original ")
    changes = _keyed(patch, rule.key, path)
    if not rule.key:
        distinct = {each.identity: each for each in [*standing, *changes]}
        left = len({each.identity for each in standing})
        return Combined(list(distinct.values()), left, [each.identity for each in changes])
    gone, replaced = _directions(patch, rule.key, path)
    if replaced:
        return Combined(
            [each._replace(entry=_verbatim(each.entry)) for each in changes], len(changes), []
        )
    entries = [each for each in standing if each.identity not in gone]
    left = len(entries)
    _merge_entries(entries, changes, rule.schema)
    return Combined(entries, left, [each.identity for each in changes])


def _merge_entries(entries: list[Keyed], changes: Sequence[Keyed], schema: str) -> None:
    """Merge each change into the first entry with the same identity, or append it."""
    places = _first_places([each.identity for each in entries])
    for change in changes:
        place = places.setdefault(change.identity, len(entries))
        if place == len(entries):
            entries.append(change._replace(entry=_verbatim(change.entry)))
        else:
            there = entries[place]
            merged = _merge_objects(there.entry, change.entry, schema, change.path)
            entries[place] = there._replace(entry=merged)


def _directions(patch: list[Any], key: str, path: str) -> tuple[set[Identity], bool]:
    """Return the entries that a patch deletes by `$patch`, and whether it replaces the list."""
    gone, replaced = set(), False
    for index, entry in enumerate(patch):
        if not _is_directed(entry):
            continue
        place = f"{path}[{index}]"
        match entry[PATCH]:
            case "delete":
                gone.add(_identity(entry, key, place))
            case "replace":
                replaced = True
            case other:
                raise StrategicMergeError(place, f"has an unknown $patch: {other!r}")
    return gone, replaced


def _arrange(entries: list[Keyed], order: Sequence[Identity], places: int) -> list[Any]:
    """Return the entries with those in `order` sorted by it, and the others in between.

    Each other entry is placed before the first named entry that followed it in the first `places`.
    """
    rank = _first_places(order)
    stood = _first_places([each.identity for each in entries[:places]])
    named = sorted((e for e in entries if e.identity in rank), key=lambda e: rank[e.identity])
    others = deque(
        sorted((e for e in entries if e.identity not in rank), key=lambda e: stood[e.identity])
    )
    arranged = []
    for each in named:
        while others and stood[others[0].identity] < stood.get(each.identity, -1):
            arranged.append(others.popleft().entry)
        arranged.append(each.entry)
    return arranged + [each.entry for each in others]


def _first_places(identities: Sequence[Identity]) -> dict[Identity, int]:
    return {each: index for index, each in reversed(list(enumerate(identities)))}


def _keyed(entries: Sequence[Any], key: str, path: str, whose: str = "") -> list[Keyed]:
    """Return the entries with their identities, without those that are directives."""
    keyed = []
    for index, entry in enumerate(entries):
        place = f"{path}[{index}]"
        if key and type(entry) is dict and type(name := entry.get(key)) is str:  # the usual case
            if PATCH not in entry:
                keyed.append(Keyed((str, name), entry, place))
        elif not (key and _is_directed(entry)):
            keyed.append(Keyed(_identity(entry, key, place, whose), entry, place))
    return keyed


def _identity(entry: Any, key: str, path: str, whose: str = "") -> Identity:
    """Return the identity of an entry, with its type: for the server 80 and 80.0 differ."""
    if key and not isinstance(entry, Mapping):
        raise StrategicMergeError(path, f"{whose}must be an object")
    value = entry.get(key) if key else entry
    if not isinstance(value, str | int | float):
        need = f"has no {key!r}, by which its list is merged" if key else "must be a scalar"
        raise StrategicMergeError(path, whose + need)
    return type(value), value


def _fields_named_by(directive: str, patch: Mapping[str, Any], path: str) -> list[str]:
    """Return the fields whose lists the directive is about."""
    found = []
    for key, value in patch.items():
        if key.startswith(directive):
            begin, _, field = key.partition("/")
            if begin != directive or not field:
                raise StrategicMergeError(_join(path, key), f"must be {directive}/<field>")
            _list(value, _join(path, key))
            found.append(field)
    return found


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise StrategicMergeError(path, "must be a list")
    return value


def _is_directive(key: str) -> bool:
    return key in (PATCH, RETAIN_KEYS) or key.startswith((SET_ORDER, DELETE_FROM))


def _is_directed(value: Any) -> bool:
    return _is_object(value) and PATCH in value


def _copy(value: Any) -> Any:
    if _is_object(value):
        return {k: each if type(each) is str else _copy(each) for k, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value


def _verbatim(value: Any) -> Any:
    """Return a copy without directives, which the server ignores inside replaced values."""
    if _is_object(value):
        if _may_direct(value):
            value = {key: each for key, each in value.items() if not _is_directive(key)}
        return {k: each if type(each) is str else _verbatim(each) for k, each in value.items()}
    return [_verbatim(each) for each in value] if isinstance(value, list) else value


def _added(value: Any) -> Any:
    """Return a copy of a value that is new, without nulls and directive objects."""
    if _is_object(value):
        if _may_direct(value):
            value = {key: each for key, each in value.items() if not _is_directive(key)}
        return {
            key: each if type(each) is str else _added(each)
            for key, each in value.items()
            if type(each) is str or not (each is None or _is_directed(each))
        }
    if isinstance(value, list):
        return [_added(each) for each in value if not _is_directed(each)]
    return value


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field
