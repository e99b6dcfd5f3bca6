"""Grants permissions to users of a test."""

from collections.abc import Sequence

from kftrainer.devcluster.client import ApiClient

RBAC = "rbac.authorization.k8s.io"


async def allow(
    api: ApiClient,
    user: str,
    verbs: Sequence[str],
    resources: Sequence[str] = ("*",),
    *,
    name: str | None = None,
    in_: str | None = None,
) -> None:
    """Grant the verbs on the resources of any group, in a namespace or everywhere."""
    metadata = {"name": name or user}
    scope = "Cluster" if in_ is None else ""
    if in_ is not None:
        metadata["namespace"] = in_
    await api.create(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": f"{scope}Role",
            "metadata": metadata,
            "rules": [{"apiGroups": ["*"], "resources": [*resources], "verbs": [*verbs]}],
        }
    )
    await api.create(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": f"{scope}RoleBinding",
            "metadata": metadata,
            "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
            "roleRef": {"kind": f"{scope}Role", "name": metadata["name"], "apiGroup": RBAC},
        }
    )
