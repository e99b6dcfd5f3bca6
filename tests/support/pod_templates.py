"""Random pod templates that are mostly valid, and strategic merge patches of them.

What is random comes from the `Random` that is handed in: a seeded one repeats itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Object = dict[str, Any]
MOUNTED = "v0"
DEVICES = {"/dev/x": "block-0", "/dev/y": "block-1"}
KEYS = ("red", "green", "blue", "grey")


@dataclass(frozen=True)
class Listing:
    """A merged list: its key, possible entries, and how to create or change one."""

    key: str
    pool: Sequence[Any]
    build: Callable[[Random, Any], Object]
    change: Callable[[Random, Object, Object], Object] | None = None
    keeps: Sequence[Any] = ()
    """What is always there, because other fields need it."""


def with_probability(r: Random, probability: float) -> bool:
    return r.random() < probability


def some(r: Random, pool: Sequence[Any], least: int = 0) -> list[Any]:
    return r.sample(list(pool), r.randint(least, len(pool)))


def strings(r: Random) -> dict[str, str]:
    return {key: r.choice(["1", "2", "3"]) for key in some(r, KEYS)}


def part(r: Random, of: Object, *, always: str = "") -> Object:
    return {key: value for key, value in of.items() if key == always or with_probability(r, 0.6)}


def expression(r: Random) -> Object:
    return {"key": r.choice(KEYS), "operator": "In", "values": some(r, ["1", "2", "3"], 1)}


# Entries of lists that are merged.


def variable(r: Random, name: str) -> Object:
    if with_probability(r, 0.5):
        return {"name": name, "value": r.choice(["", "1", "2", "$(HOME)"])}
    return {"name": name, "valueFrom": value_source(r)}


def value_source(r: Random) -> Object:
    reference: Object = {"name": r.choice(KEYS), "key": r.choice(KEYS)}
    if with_probability(r, 0.3):
        reference["optional"] = with_probability(r, 0.5)
    return r.choice(
        [
            {"secretKeyRef": reference},
            {"configMapKeyRef": reference},
            {"fieldRef": {"fieldPath": "metadata.name"}},
        ]
    )


def port(r: Random, number: int) -> Object:
    entry: Object = {"containerPort": number, "protocol": r.choice(["TCP", "UDP", "SCTP"])}
    return entry | ({"name": f"port-{number}"} if with_probability(r, 0.5) else {})


def mount(r: Random, path: str) -> Object:
    entry: Object = {"mountPath": path, "name": MOUNTED, "subPath": r.choice([None, *KEYS])}
    return entry | ({"readOnly": True} if with_probability(r, 0.5) else {})


def device(_: Random, path: str) -> Object:
    return {"devicePath": path, "name": DEVICES[path]}


def volume(r: Random, name: str) -> Object:
    kind = r.choice(list(VOLUME_SOURCES))
    return {"name": name, kind: VOLUME_SOURCES[kind](r)}


VOLUME_SOURCES: Mapping[str, Callable[[Random], Object]] = {
    "emptyDir": lambda r: part(r, {"medium": "Memory", "sizeLimit": "1Gi"}),
    "configMap": lambda r: {
        "name": r.choice(KEYS),
        "items": [{"key": "k", "path": r.choice(KEYS)}],
    },
    "secret": lambda r: {"secretName": r.choice(KEYS), "defaultMode": r.choice([0o400, 0o440])},
    "hostPath": lambda r: {"path": "/data", "type": r.choice(["Directory", ""])},
    "persistentVolumeClaim": lambda r: {
        "claimName": r.choice(KEYS),
        "readOnly": with_probability(r, 0.5),
    },
    "projected": lambda r: {"sources": [{"configMap": {"name": key}} for key in some(r, KEYS, 1)]},
    "ephemeral": lambda r: {
        "volumeClaimTemplate": {
            "metadata": {"labels": strings(r)},
            "spec": {
                "accessModes": some(r, ["ReadWriteOnce", "ReadOnlyMany"], 1),
                "resources": {"requests": {"storage": r.choice(["1Gi", "2Gi"])}},
            },
        }
    },
}


def named(_: Random, name: str) -> Object:
    return {"name": name}


def host_alias(r: Random, ip: str) -> Object:
    return {"ip": ip, "hostnames": some(r, KEYS, 1)}


def claim(r: Random, name: str) -> Object:
    kind = r.choice(["resourceClaimName", "resourceClaimTemplateName"])
    return {"name": name, kind: r.choice(KEYS)}


def spread(r: Random, key: str) -> Object:
    selector = {"matchLabels": strings(r), "matchExpressions": [expression(r)]}
    return {
        "topologyKey": key,
        "maxSkew": r.randint(1, 3),
        "whenUnsatisfiable": r.choice(["DoNotSchedule", "ScheduleAnyway"]),
        "labelSelector": part(r, selector),
    }


def owner(r: Random, uid: str) -> Object:
    entry = {"apiVersion": "v1", "kind": "ConfigMap", "name": r.choice(KEYS), "uid": uid}
    return entry | ({"blockOwnerDeletion": True} if with_probability(r, 0.3) else {})


def container(r: Random, name: str) -> Object:
    entry: Object = {"name": name, "image": r.choice(["image:1", "image:2"])}
    for field, listing in CONTAINER_LISTS.items():
        if with_probability(r, 0.7):
            entry[field] = entries(r, listing)
    return entry | part(r, container_fields(r))


def share_ports(r: Random, ports: list[Object]) -> None:
    """Add entries with the merge keys of others."""
    numbers = sorted({each["containerPort"] for each in ports})
    ports += [{"containerPort": each, "name": f"too-{each}"} for each in some(r, numbers)]
    r.shuffle(ports)


def container_fields(r: Random) -> Object:
    return {
        "args": some(r, KEYS),
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": key}} for key in some(r, KEYS)],
        "resources": {"limits": part(r, {"cpu": r.choice(["1", "2"]), "memory": "1Gi"})},
        "securityContext": {
            "capabilities": part(r, {"add": some(r, KEYS), "drop": some(r, KEYS)}),
            "runAsUser": r.randint(1, 3),
        },
        "workingDir": r.choice(["/", "/work"]),
    }


def other_source(r: Random, old: Object, new: Object) -> Object:
    """Another source for an entry, in a way that lets the old one go, or nearly always."""
    is_deleted = old.keys() - new.keys()
    match r.choice(["retain", "retain", "null", "null", "mix"]):
        case "retain":
            return new | {"$retainKeys": r.sample(sorted(new), len(new))}
        case "null":
            return new | dict.fromkeys(is_deleted)
        case _:
            return new


def changed(r: Random, old: Object, new: Object, key: str) -> Object:
    """Some fields of the new entry, and nulls for some of the old."""
    nulls = [each for each in sorted(old) if each != key and each not in REQUIRED]
    return part(r, new, always=key) | dict.fromkeys(
        each for each in nulls if with_probability(r, 0.15)
    )


def changed_variable(r: Random, old: Object, new: Object) -> Object:
    source, old_source = new.get("valueFrom"), old.get("valueFrom")
    if source and old_source:
        return {**new, "valueFrom": other_source(r, old_source, source)}
    return other_source(r, old, new)


def changed_container(r: Random, old: Object, new: Object) -> Object:
    entry: Object = {"name": old["name"]} | part(r, {"image": new["image"]})
    for field, listing in CONTAINER_LISTS.items():
        if with_probability(r, 0.5):
            entry |= patched_list(r, field, listing, old.get(field, []))
    if "args" in old and with_probability(r, 0.2):
        return entry | {"$deleteFromPrimitiveList/args": some(r, KEYS)}
    return entry | patched_fields(r, old, container_fields(r), 0.25)


REQUIRED = ("image", "ip", "maxSkew", "whenUnsatisfiable", "kind", "apiVersion")
CONTAINER_LISTS = {
    "env": Listing("name", list("ABCDE"), variable, changed_variable),
    "ports": Listing("containerPort", range(8080, 8084), port),
    "volumeMounts": Listing("mountPath", [f"/m{n}" for n in range(4)], mount),
    "volumeDevices": Listing("devicePath", list(DEVICES), device),
}
POD_LISTS = {
    "volumes": Listing("name", [f"v{n}" for n in range(5)], volume, other_source, [MOUNTED]),
    "containers": Listing(
        "name", [f"c{n}" for n in range(4)], container, changed_container, ["c0"]
    ),
    "initContainers": Listing("name", [f"i{n}" for n in range(3)], container, changed_container),
    "imagePullSecrets": Listing("name", [f"s{n}" for n in range(5)], named),
    "schedulingGates": Listing("name", [f"example.com/g{n}" for n in range(4)], named),
    "hostAliases": Listing("ip", [f"10.0.0.{n}" for n in range(4)], host_alias),
    "resourceClaims": Listing("name", [f"r{n}" for n in range(3)], claim, other_source),
    "topologySpreadConstraints": Listing("topologyKey", ["zone", "rack", "host"], spread),
}
OWNERS = Listing("uid", [f"u{n}" for n in range(4)], owner)
FINALIZERS = [f"example.com/f{n}" for n in range(5)]
BLOCKS: list[Object] = [
    {"name": name, "persistentVolumeClaim": {"claimName": "raw"}} for name in DEVICES.values()
]


def pod_fields(r: Random) -> Object:
    return {
        "nodeSelector": strings(r),
        "serviceAccountName": r.choice(KEYS),
        "tolerations": [{"key": key, "operator": "Exists"} for key in some(r, KEYS)],
        "affinity": part(r, {"nodeAffinity": node_affinity(r), "podAffinity": pod_affinity(r)}),
        "securityContext": {"runAsUser": 1, "supplementalGroups": some(r, [1, 2, 3])},
        "dnsConfig": {"nameservers": some(r, ["10.1.0.1", "10.1.0.2"]), "searches": some(r, KEYS)},
    }


def node_affinity(r: Random) -> Object:
    terms = [{"matchExpressions": [expression(r)]} for _ in range(r.randint(1, 2))]
    weighed = [{"weight": r.randint(1, 9), "preference": terms[0]}]
    return part(
        r,
        {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            "preferredDuringSchedulingIgnoredDuringExecution": weighed,
        },
    )


def pod_affinity(r: Random) -> Object:
    term = {"topologyKey": r.choice(KEYS), "labelSelector": {"matchExpressions": [expression(r)]}}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def template(r: Random) -> Object:
    """A pod template that the API server takes."""
    metadata = {
        "labels": strings(r),
        "annotations": strings(r),
        "finalizers": some(r, FINALIZERS),
        "ownerReferences": entries(r, OWNERS),
    }
    spec: Object = {field: entries(r, listing) for field, listing in POD_LISTS.items()}
    for each in spec["containers"]:
        if with_probability(r, 0.3):
            share_ports(r, each.get("ports", []))
    spec["volumes"] = BLOCKS[:1] + spec["volumes"] + BLOCKS[1:]
    return {"metadata": part(r, metadata), "spec": spec | part(r, pod_fields(r))}


def entries(r: Random, listing: Listing) -> list[Object]:
    chosen = [each for each in listing.pool if each in listing.keeps or with_probability(r, 0.5)]
    r.shuffle(chosen)
    return [listing.build(r, each) for each in chosen]


def patch_of(r: Random, original: Object) -> Object:
    """A strategic merge patch of the template, with every directive there is."""
    metadata, spec = original.get("metadata", {}), original["spec"]
    fields = {"labels": strings(r), "annotations": strings(r)}
    new_metadata = patched_fields(r, metadata, fields, 0.4)
    if with_probability(r, 0.4):
        new_metadata |= patched_list(
            r, "ownerReferences", OWNERS, metadata.get("ownerReferences", [])
        )
    if with_probability(r, 0.4):
        new_metadata |= patched_set(r, metadata.get("finalizers", []))
    new_spec = patched_fields(r, spec, pod_fields(r), 0.25)
    for field, listing in POD_LISTS.items():
        if with_probability(r, 0.4):
            new_spec |= patched_list(r, field, listing, spec.get(field, []))
    return {"metadata": new_metadata, "spec": new_spec}


def override_of(r: Random, original: Object) -> Object:
    """A patch as a TrainJob's podTemplateOverrides make one: no directives, sources mixed."""
    variables = Listing("name", list("ABCDE"), variable)
    spec: Object = {
        "volumes": [volume(r, name) for name in some(r, POD_LISTS["volumes"].pool)],
        "containers": [
            {"name": each["name"], "env": entries(r, variables)}
            for each in original["spec"]["containers"]
        ],
    }
    return {"metadata": {"labels": strings(r)}, "spec": spec}


def patched_fields(r: Random, old: Object, new: Object, probability: float) -> Object:
    """A patch of fields that are not merged lists."""
    entry: Object = {}
    for field, value in new.items():
        if not with_probability(r, probability):
            continue
        if isinstance(value, dict):
            entry[field] = patched_object(r, old.get(field, {}), value)
        else:
            entry[field] = None if with_probability(r, 0.15) else value
    return entry


def patched_object(r: Random, old: Object, new: Object) -> Object | None:
    match r.choice(["merge"] * 7 + ["replace", "delete", "null"]):
        case "replace":
            return {"$patch": "replace", **new}
        case "delete":
            return {"$patch": "delete", **new}
        case "null":
            return None
        case _:
            return new | dict.fromkeys(key for key in sorted(old) if with_probability(r, 0.2))


def patched_list(r: Random, field: str, listing: Listing, old: list[Object]) -> Object:
    """A patch of a merged list: the list, its order, or both."""
    if not listing.keeps and with_probability(r, 0.05):
        return {field: None}
    present = {each[listing.key]: each for each in old}
    requested: list[Object] = []
    for identity in r.sample(list(listing.pool), r.randint(1, min(3, len(listing.pool)))):
        requested += patched_entries(r, listing, present.get(identity), identity)
    kept = [each[listing.key] for each in requested if "$patch" not in each]
    if kept and not listing.keeps and with_probability(r, 0.1):
        requested.insert(0, {"$patch": "replace"})  # behind the last that is ordered, it is refused
    is_deleted = {each.get(listing.key) for each in requested if "$patch" in each}
    others = [
        each for each in dict.fromkeys(present) if each not in kept and each not in is_deleted
    ]
    order = [{listing.key: each} for each in shuffled_in(r, kept, some(r, others))]
    if with_probability(r, 0.7) or not order:
        return {field: requested}
    return {f"$setElementOrder/{field}": order} | (
        {field: requested} if with_probability(r, 0.8) else {}
    )


def patched_entries(r: Random, listing: Listing, old: Object | None, identity: Any) -> list[Object]:
    new = listing.build(r, identity)
    if old is None:
        return [new]
    if identity not in listing.keeps and with_probability(r, 0.2):
        deleted = {"$patch": "delete", listing.key: identity}
        return [deleted, new] if with_probability(r, 0.2) else [deleted]
    if listing.change is None:
        return [changed(r, old, new, listing.key)]
    return [listing.change(r, old, new)]


def patched_set(r: Random, old: list[str]) -> Object:
    requested = some(r, FINALIZERS, 1)
    # The server takes fields in any order, so what is added and deleted at once may be either.
    is_deleted = [each for each in old if each not in requested and with_probability(r, 0.5)]
    others = [each for each in old if each not in requested and each not in is_deleted]
    order = shuffled_in(r, requested, others)
    entry: Object = {"finalizers": requested} if with_probability(r, 0.8) else {}
    if with_probability(r, 0.5):
        entry["$deleteFromPrimitiveList/finalizers"] = is_deleted
    return entry | ({"$setElementOrder/finalizers": order} if with_probability(r, 0.3) else {})


def shuffled_in(r: Random, these: list[Any], those: list[Any]) -> list[Any]:
    """Both lists in one, the order of the first kept."""
    mixed = list(these)
    for each in those:
        mixed.insert(r.randint(0, len(mixed)), each)
    return mixed


def features(patch: Any) -> Iterator[str]:
    """What a patch makes use of: its fields, its directives, null."""
    if patch is None:
        yield "null"
    elif isinstance(patch, list):
        for each in patch:
            yield from features(each)
    elif isinstance(patch, dict):
        for key, value in patch.items():
            yield f"$patch: {value}" if key == "$patch" else key
            yield from features(value)
