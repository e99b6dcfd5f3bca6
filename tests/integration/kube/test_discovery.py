"""Which kinds the real API server serves."""

from dataclasses import replace
from typing import Any

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import ObjectKey
from tests.integration.kube.kinds import CONFIG_MAPS, NAMESPACES, TRAIN_JOBS, resource

DEFINITIONS = resource(
    "CustomResourceDefinition",
    "customresourcedefinitions",
    group="apiextensions.k8s.io",
    namespaced=False,
)


def definition(plural: str, group: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [
        {
            "name": name,
            "served": True,
            "storage": name == "v1",
            "schema": {"openAPIV3Schema": schema},
        }
        for name in ("v1alpha1", "v1")
    ]
    kind = plural.removesuffix("s").capitalize()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": plural.removesuffix("s"), "kind": kind},
            "versions": versions,
        },
    }


async def test_kinds_of_the_core_and_of_groups_are_found(transport: HttpTransport) -> None:
    mapper = RestMapper(transport)
    assert await mapper.find("", "ConfigMap") == CONFIG_MAPS
    assert await mapper.find("", "Namespace") == NAMESPACES
    assert await mapper.find("trainer.kubeflow.org", "TrainJob") == TRAIN_JOBS
    assert await mapper.is_served(TRAIN_JOBS)


async def test_missing_object_is_not_found(transport: HttpTransport) -> None:
    mapper = RestMapper(transport)
    assert await mapper.find("nowhere.example", "Thing") is None
    assert await mapper.find("trainer.kubeflow.org", "Thing") is None
    assert not await mapper.is_served(resource("Thing", "things", group="nowhere.example"))
    assert not await mapper.is_served(replace(TRAIN_JOBS, version="v7"))
    assert not await mapper.is_served(replace(TRAIN_JOBS, plural="jobs"))


async def test_a_kind_that_appears_later_is_found_in_the_preferred_version(
    transport: HttpTransport, api: ApiClient, client: Client
) -> None:
    group = "later.example"
    lamps = resource("Lamp", "lamps", group=group, namespaced=False)
    mapper = RestMapper(transport)
    assert await mapper.find(group, "Lamp") is None
    await api.apply_crd(definition("lamps", group))
    assert await mapper.find(group, "Lamp") == lamps
    assert await mapper.is_served(replace(lamps, version="v1alpha1"))

    other = RestMapper(transport)
    assert await other.is_served(replace(lamps, version="v1alpha1"))
    assert await other.find(group, "Lamp") == lamps, "regardless of earlier requests"

    # Its group and version are known by now, and this kind is not among what is known of them.
    chairs = resource("Chair", "chairs", group=group, namespaced=False)
    assert not await mapper.is_served(chairs)
    await api.apply_crd(definition("chairs", group))
    assert await mapper.is_served(chairs)
    assert await mapper.find(group, "Chair") == chairs

    for plural in ("lamps", "chairs"):
        await client.delete(DEFINITIONS, ObjectKey("", f"{plural}.{group}"))

    async def is_gone() -> bool:
        return await RestMapper(transport).find(group, "Lamp") is None

    await until(is_gone, within=30, what="the group going away")
    assert await mapper.find(group, "Table") is None, "nothing is wrong with a group that is gone"


async def test_discovery_results_are_cached(transport: HttpTransport) -> None:
    mapper = RestMapper(transport)
    found = await mapper.find("", "ConfigMap")
    await transport.close()
    assert await mapper.find("", "ConfigMap") == found
    assert await mapper.is_served(NAMESPACES)
