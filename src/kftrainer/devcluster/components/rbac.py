"""RBAC rules for the service accounts of other projects' controllers. Pure."""

from collections.abc import Iterable, Iterator

from kftrainer.devcluster.artifacts.manifests import Document


def bound_roles(
    prefix: str, roles: Iterable[Document], service_account: str, namespace: str
) -> Iterator[Document]:
    """Yield each ClusterRole with a prefixed name, and its binding to the service account."""
    for role in roles:
        name = f"{prefix}-{role['metadata']['name']}"
        yield {**role, "metadata": {"name": name}}
        yield {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": name,
            },
            "subjects": [
                {"kind": "ServiceAccount", "name": service_account, "namespace": namespace}
            ],
        }
