"""The operator's own client, as the administrator of the session's control plane."""

from collections.abc import AsyncIterator

import pytest

from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport


@pytest.fixture
async def transport(control_plane: ControlPlane) -> AsyncIterator[HttpTransport]:
    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="kftrainer-tests/1") as transport:
        yield transport


@pytest.fixture
def client(transport: HttpTransport) -> Client:
    return Client(transport, field_manager="kftrainer-tests")
