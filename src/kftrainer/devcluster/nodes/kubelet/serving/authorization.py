"""Whether the user of a client certificate may use the kubelet API of a node."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.devcluster.client import ApiClient

Names = Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class User:
    """The user and the groups in a client certificate."""

    name: str
    groups: tuple[str, ...]


def user_in(certificate: dict[str, Any]) -> User:
    """Return the user of a certificate, as `SSLSocket.getpeercert` describes it."""
    subject: Names = certificate.get("subject") or ()
    parts = [part for names in subject for part in names]
    return User(
        next((value for kind, value in parts if kind == "commonName"), ""),
        tuple(value for kind, value in parts if kind == "organizationName"),
    )


def subresources(path: str) -> tuple[str, ...]:
    """Return the subresources of the node of which one permits a request to this path.

    These are the kubelet's: requests without a subresource of their own need `proxy`.
    """
    first = path.strip("/").partition("/")[0]
    own = {"pods": "pods", "healthz": "healthz"}.get(first)
    return (own, "proxy") if own else ("proxy",)


def review(user: User, node: str, subresource: str) -> dict[str, Any]:
    """Return the question to the API server."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": user.name,
            "groups": [*user.groups, "system:authenticated"],
            "resourceAttributes": {
                "verb": "get",
                "version": "v1",
                "resource": "nodes",
                "subresource": subresource,
                "name": node,
            },
        },
    }


async def is_authorized(api: ApiClient, user: User, node: str, wanted: Iterable[str]) -> bool:
    """Return whether the API server permits one of these subresources."""
    for subresource in wanted:
        answer = await api.create(review(user, node, subresource))
        if answer["status"].get("allowed"):
            return True
    return False
