"""Tokens of service accounts, bound to a pod and renewed before they expire."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError
from kftrainer.devcluster.nodes.kubelet.inputs.kinds import SERVICE_ACCOUNTS
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.resource import Manifest, ObjectKey

LONGEST_USE = timedelta(hours=24)
RENEWED_AT = 0.8  # of the lifetime


@dataclass(frozen=True, slots=True)
class Token:
    """A token and when it is used."""

    text: str
    renew_at: datetime
    expires: datetime


class PodTokens:
    """The tokens of one pod, by audience and lifetime."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._tokens: dict[tuple[str, int | None], Token] = {}

    async def get(self, pod: Manifest, source: Mapping[str, Any], now: datetime) -> str:
        """Return the token for a source of a projected volume; request one if it is due.

        A token that cannot be renewed is used until it expires.
        """
        audience, seconds = source.get("audience") or "", source.get("expirationSeconds")
        known = self._tokens.get((audience, seconds))
        if known is None or now >= known.renew_at:
            try:
                known = await self._request(pod, audience, seconds, now)
            except KubeError as error:
                if known is None or now >= known.expires:
                    raise InputError(f"failed to fetch token: {error}") from error
            self._tokens[audience, seconds] = known
        return known.text

    async def _request(
        self, pod: Manifest, audience: str, seconds: int | None, now: datetime
    ) -> Token:
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"]}
        spec = {
            "audiences": [audience] if audience else [],
            "boundObjectRef": {**bound, "uid": metadata["uid"]},
            **({} if seconds is None else {"expirationSeconds": seconds}),
        }
        found = await self._api.create_subresource(
            SERVICE_ACCOUNTS,
            ObjectKey(metadata["namespace"], account),
            "token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        return token_of(found, now)


def token_of(request: Manifest, now: datetime) -> Token:
    """Return the token of a TokenRequest that was created just now."""
    status = request["status"]
    expires = datetime.fromisoformat(status["expirationTimestamp"])
    due = now + (expires - now) * RENEWED_AT
    return Token(status["token"], min(due, now + LONGEST_USE), expires)
