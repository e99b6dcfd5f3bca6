"""kubernetes-asyncio as its documentation shows it: a list into a dict, then a watch."""

import asyncio
import os
import sys

from common import Stalls, Start, report
from kubernetes_asyncio import client, config, watch

KIND = ("trainer.kubeflow.org", "v1alpha1", "trainjobs")


async def main(updates: int) -> None:
    """Sync, report, count updates, report."""
    loop = asyncio.get_running_loop()
    await config.load_kube_config(os.environ["KUBECONFIG"])
    stalls, start, began = Stalls(), Start(), loop.time()
    async with asyncio.TaskGroup() as group, client.ApiClient() as connection:
        probe = group.create_task(stalls.probe())
        api = client.CustomObjectsApi(connection)
        listed = await api.list_cluster_custom_object(*KIND)
        store = {each["metadata"]["name"]: each for each in listed["items"]}
        took = loop.time() - began
        report(seconds=took, stall=await stalls.settle(), before=start.rss, used=start.cpu)
        seen = 0
        version = listed["metadata"]["resourceVersion"]
        async with watch.Watch() as watching:
            events = watching.stream(
                api.list_cluster_custom_object, *KIND, resource_version=version, timeout_seconds=600
            )
            async for event in events:
                store[event["object"]["metadata"]["name"]] = event["object"]
                seen += 1
                if seen >= updates:
                    break
        report()
        probe.cancel()


asyncio.run(main(int(sys.argv[1])))
