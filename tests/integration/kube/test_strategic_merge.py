"""Our strategic merge against the API server's: the same patch gives the same pod template.

The server fills in defaults after it has merged. So our result is sent to it too, as a whole, and
the two answers are compared; both are dry runs, and one stored template serves many patches.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from kftrainer.kube.objects.strategic_merge import (
    StrategicMergeError,
    retain_sources,
    strategic_merge,
)
from tests.support.pod_templates import Object, features, override_of, patch_of, template

STRATEGIC = "application/strategic-merge-patch+json"
TEMPLATES, PATCHES_EACH = 12, 25
DRY_RUN = {"dryRun": "All"}
INVALID = 422
TWO_SOURCES = ("not specify more than 1", "not be specified when", "not have more than one field")


class Stored:
    """A PodTemplate on the server, as it was given back with all defaults."""

    def __init__(self, api: ApiClient, path: str, manifest: Object) -> None:
        self._api = api
        self.path = path
        self._manifest = manifest
        self.template: Object = manifest["template"]

    async def patched(self, patch: Object) -> Object | str:
        """What the server makes of a patch, or why it refuses."""
        return await self._answer("PATCH", {"template": patch}, STRATEGIC)

    async def written(self, whole: Object) -> Object | str:
        """What the server makes of a whole template, or why it refuses."""
        return await self._answer("PUT", {**self._manifest, "template": whole}, "application/json")

    async def _answer(self, method: str, body: Object, content_type: str) -> Object | str:
        try:
            answer = await self._api.request(
                method, self.path, query=DRY_RUN, body=body, content_type=content_type
            )
            pod_template: Object = answer["template"]
        except ApiError as error:
            if error.status != INVALID:  # then it was not validation but the merge
                raise
            return str(error)
        return pod_template


async def store(api: ApiClient, namespace: str, pod_template: Object) -> Stored:
    manifest = {"apiVersion": "v1", "kind": "PodTemplate", "template": pod_template}
    manifest["metadata"] = {"generateName": "template-", "namespace": namespace}
    path = f"/api/v1/namespaces/{namespace}/podtemplates"
    created = await api.request("POST", path, body=manifest)
    return Stored(api, f"{path}/{created['metadata']['name']}", created)


def sources(pod_template: Object) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every volume and variable, and where its content comes from."""
    spec = pod_template["spec"]
    for volume in spec.get("volumes", []):
        yield from ((volume["name"], ("volume", key)) for key in volume if key != "name")
    for container in spec["containers"] + spec.get("initContainers", []):
        for variable in container.get("env", []):
            kinds = [("valueFrom", key) for key in variable.get("valueFrom", {})]
            yield f"{container['name']}.{variable['name']}", (*kinds, ("value", ""))[0]


def switches(before: Object, after: Object) -> Iterator[str]:
    was = dict(sources(before))
    for name, kind in sources(after):
        if was.get(name, kind) != kind:
            yield f"{was[name][0]} → {kind[0]}"


COVERED = [
    *("volumes", "env", "valueFrom", "volumeMounts", "volumeDevices", "ports", "args", "envFrom"),
    *("containers", "initContainers", "tolerations", "affinity", "imagePullSecrets", "limits"),
    *("schedulingGates", "nodeSelector", "labels", "annotations", "hostAliases", "resourceClaims"),
    *("topologySpreadConstraints", "finalizers", "ownerReferences", "securityContext", "dnsConfig"),
    *("null", "$patch: replace", "$patch: delete", "$retainKeys", "$setElementOrder/containers"),
    *("$setElementOrder/env", "$setElementOrder/finalizers", "$setElementOrder/volumes"),
    *("$deleteFromPrimitiveList/finalizers", "$deleteFromPrimitiveList/args"),
    *("value → valueFrom", "valueFrom → value", "valueFrom → valueFrom", "volume → volume"),
]


async def test_random_patches_match_the_server(api: ApiClient, namespace: str) -> None:
    random = Random(20261116)  # noqa: S311
    tally: Counter[str] = Counter()
    for _ in range(TEMPLATES):
        stored = await store(api, namespace, template(random))
        for _ in range(PATCHES_EACH):
            patch = patch_of(random, stored.template)
            wanted = await stored.patched(patch)
            assert await stored.written(strategic_merge(stored.template, patch)) == wanted, patch
            if isinstance(wanted, str):
                tally["refused"] += 1
                continue
            tally["compared"] += 1
            tally["changed"] += wanted != stored.template
            tally.update([*set(features(patch)), *switches(stored.template, wanted)])
    assert tally["compared"] >= 200
    assert tally["changed"] >= 0.95 * tally["compared"]
    assert {each: tally[each] for each in COVERED if tally[each] < 3} == {}


async def test_overrides_change_sources_on_the_server_as_here(
    api: ApiClient, namespace: str
) -> None:
    random = Random(27)  # noqa: S311
    mixed = switched = 0
    for _ in range(10):
        stored = await store(api, namespace, template(random))
        for _ in range(6):
            override = override_of(random, stored.template)
            refusal = await stored.patched(override)
            if isinstance(refusal, str):
                assert any(each in refusal for each in TWO_SOURCES), refusal
                mixed += 1
            prepared = retain_sources(stored.template, override)
            wanted = await stored.patched(prepared)
            assert isinstance(wanted, dict), wanted
            assert await stored.written(strategic_merge(stored.template, prepared)) == wanted
            switched += len(list(switches(stored.template, wanted)))
    assert mixed >= 30, "as they come, many overrides would leave two sources"
    assert switched >= 60


PLAIN: Object = {
    "metadata": {"labels": {"a": "1"}, "finalizers": ["x/1", "x/2", "x/3"]},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "image",
                "args": ["1", "2", "1"],
                "env": [{"name": name, "value": "1"} for name in "ABCD"],
                "ports": [
                    {"containerPort": 53, "protocol": "TCP"},
                    {"containerPort": 80},
                    {"containerPort": 53, "protocol": "UDP"},
                ],
            },
            {"name": "side", "image": "image"},
        ],
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
    },
}


def main(**fields: Any) -> Object:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


SPREAD = {"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
EDGE_CASES: dict[str, Object] = {
    "nothing": {},
    "replace an object that is not there": {
        "spec": {"nodeSelector": {"$patch": "replace", "a": "b"}}
    },
    "replace an object": {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
    "delete an object": {"metadata": {"labels": {"$patch": "delete", "b": "2"}}},
    "replace everything": {
        "$patch": "replace",
        "spec": {
            "containers": [
                {"name": "new", "image": "i", "env": [{"name": "A", "$patch": "delete"}]}
            ]
        },
    },
    "directives in what is new": {
        "spec": {
            "initContainers": [
                {
                    "name": "a",
                    "image": "i",
                    "$retainKeys": ["name"],
                    "env": [{"$patch": "replace"}],
                },
                {"name": "b", "$patch": "delete"},
            ]
        }
    },
    "directives in a new entry": {
        "spec": {
            "containers": [
                {
                    "name": "new",
                    "image": "i",
                    "env": [{"name": "A", "$patch": "delete"}, {"name": "B"}],
                    "securityContext": {"$patch": "delete", "runAsUser": 1},
                    "$setElementOrder/env": [{"name": "B"}],
                    "workingDir": None,
                }
            ]
        }
    },
    "directives in a list that is replaced": {
        "spec": {"tolerations": [{"$patch": "replace"}, {"key": "b", "operator": "Exists"}]}
    },
    "nulls in a new object": {"spec": {"nodeSelector": {"a": None, "b": "1"}, "hostAliases": None}},
    "nulls in a new entry": {
        "spec": {
            "topologySpreadConstraints": [
                SPREAD | {"labelSelector": {"matchLabels": {"a": None, "b": "1"}}}
            ]
        }
    },
    "an entry twice": main(env=[{"name": "Z", "value": "1"}, {"name": "Z", "value": "2"}]),
    "a new list with an entry twice": {
        "spec": {
            "containers": [
                {"name": "side", "ports": [{"containerPort": 1}, {"containerPort": 1, "name": "x"}]}
            ]
        }
    },
    "entries that share a merge key": main(ports=[{"containerPort": 90}]),
    "one of the entries that share a merge key": main(
        ports=[{"containerPort": 53, "name": "dns", "protocol": "SCTP"}]
    ),
    "delete all entries that share a merge key": main(
        ports=[{"containerPort": 53, "$patch": "delete"}]
    ),
    "replace by entries that share a merge key": main(
        ports=[
            {"$patch": "replace"},
            {"containerPort": 1, "protocol": "TCP"},
            {"containerPort": 2},
            {"containerPort": 1, "protocol": "UDP"},
        ]
    ),
    "an empty list that is merged": main(env=[], ports=[]),
    "an empty list that is replaced": main(args=[]),
    "empty a list": main(env=[{"$patch": "replace"}]),
    "null for lists": main(env=None, args=None, ports=None),
    "delete and add again": main(env=[{"name": "A", "$patch": "delete"}, {"name": "A"}]),
    "new entries in the places of deleted ones": main(
        env=[{"name": "A", "$patch": "delete"}, {"name": "Y"}, {"name": "Z"}],
        **{"$setElementOrder/env": [{"name": "Y"}, {"name": "Z"}]},
    ),
    "an order for some": main(**{"$setElementOrder/env": [{"name": "D"}, {"name": "B"}]}),
    "an order for what is not there": main(
        **{"$setElementOrder/volumeMounts": [{"mountPath": "/a"}]}
    ),
    "scalars deleted from a list that is replaced": main(
        **{"$deleteFromPrimitiveList/args": ["1"]}
    ),
    "scalars deleted from a list that is not there": {
        "spec": {"containers": [{"name": "side", "$deleteFromPrimitiveList/args": ["1"]}]}
    },
    "scalars added, deleted and ordered": {
        "metadata": {
            "finalizers": ["x/4", "x/2"],
            "$deleteFromPrimitiveList/finalizers": ["x/1"],
            "$setElementOrder/finalizers": ["x/4", "x/3", "x/2"],
        }
    },
    "scalars that are there": {"metadata": {"finalizers": ["x/3", "x/0", "x/1"]}},
    "retain keys that the patch does not give": {
        "spec": {"affinity": {"$retainKeys": ["podAffinity"]}}
    },
    "two sources": {"spec": {"volumes": [{"name": "data", "hostPath": {"path": "/"}}]}},
}


@pytest.mark.parametrize("patch", EDGE_CASES.values(), ids=EDGE_CASES.keys())
async def test_unusual_patches_match_the_server(
    api: ApiClient, namespace: str, patch: Object
) -> None:
    stored = await store(api, namespace, PLAIN)
    wanted = await stored.patched(patch)
    assert await stored.written(strategic_merge(stored.template, patch)) == wanted


@pytest.mark.parametrize(
    ("path", "patch"),
    [
        ("spec.containers[0]", {"spec": {"containers": [{"image": "i"}]}}),
        ("spec.containers[1]", {"spec": {"containers": [{"name": "main"}, "side"]}}),
        ("spec.containers", {"spec": {"containers": {"name": "main"}}}),
        ("spec.hostAliases[0]", {"spec": {"hostAliases": [{"hostnames": ["a"]}]}}),
        ("spec.containers[0].env[1]", main(env=[{"name": "A"}, {"value": "1"}])),
        ("spec.containers[0].env[0]", main(env=[{"name": "A", "$patch": "merge"}])),
        ("spec.containers[0].env[0]", main(env=[{"name": "A", "$patch": None}])),
        ("spec.containers[0].env[0]", main(env=[{"value": "A", "$patch": "delete"}])),
        ("metadata.labels", {"metadata": {"labels": {"$patch": "merge", "a": "2"}}}),
        ("", {"$patch": "update"}),
        ("spec.affinity", {"spec": {"affinity": {"podAffinity": {}, "$retainKeys": []}}}),
        ("spec.affinity.$retainKeys", {"spec": {"affinity": {"$retainKeys": "podAffinity"}}}),
        (
            "spec.containers[0].env[1]",
            main(
                env=[{"name": "A"}, {"name": "B"}],
                **{"$setElementOrder/env": [{"name": "B"}, {"name": "A"}]},
            ),
        ),
        (
            "spec.containers[0].$setElementOrder/env[0]",
            main(**{"$setElementOrder/env": [{"value": "B"}]}),
        ),
        ("spec.containers[0].$setElementOrder/env", main(**{"$setElementOrder/env": "A"})),
        ("spec.containers[0].$setElementOrder", main(**{"$setElementOrder": ["A"]})),
        ("spec.containers[0].env", main(env=None, **{"$setElementOrder/env": [{"name": "A"}]})),
        ("metadata.$deleteFromPrimitiveList", {"metadata": {"$deleteFromPrimitiveList": ["a"]}}),
        ("spec.containers[0].env[0]", main(**{"$deleteFromPrimitiveList/env": ["A"]})),
    ],
)
async def test_rejected_patches_are_rejected_by_the_server(
    api: ApiClient, namespace: str, path: str, patch: Object
) -> None:
    stored = await store(api, namespace, PLAIN)
    with pytest.raises(StrategicMergeError) as ours:
        strategic_merge(stored.template, patch)
    assert ours.value.path == path
    with pytest.raises(ApiError):
        await api.request(
            "PATCH", stored.path, query=DRY_RUN, body={"template": patch}, content_type=STRATEGIC
        )


async def test_comparison_detects_order_and_missing_deletions(
    api: ApiClient, namespace: str
) -> None:
    stored = await store(api, namespace, PLAIN)
    patch: Object = {"spec": {"volumes": [{"name": "new", "emptyDir": {}}]}}
    wanted = await stored.patched(patch)
    ours = strategic_merge(
        stored.template, {"spec": {"volumes": [{"name": "new", "emptyDir": {}}]}}
    )
    assert await stored.written(ours) == wanted
    mutations: list[Callable[[Object], Any]] = [
        lambda spec: spec["volumes"].reverse(),
        lambda spec: spec["volumes"].pop(),
        lambda spec: spec["containers"].reverse(),
        lambda spec: spec["containers"][0]["env"].reverse(),
        lambda spec: spec["containers"][0]["env"][0].update(value=""),
        lambda spec: spec["tolerations"].append({"operator": "Exists"}),
    ]
    for each in mutations:
        mutated = strategic_merge(ours, {})
        each(mutated["spec"])
        assert await stored.written(mutated) != wanted
