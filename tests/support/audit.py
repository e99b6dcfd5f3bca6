"""Reads the API server's audit log: requests of users and the permissions they used."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CREATED, FORBIDDEN = 201, 403
BY_A_WEBHOOK = "denied the request"  # it answers like RBAC, but not for want of a right


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """One audited request of a user and its response code."""

    user: str
    verb: str
    group: str
    resource: str  # with its subresource, as in roles: trainjobs/status
    namespace: str
    name: str
    code: int
    path: str
    message: str = ""  # why it was refused

    @property
    def verbs(self) -> frozenset[str]:
        """Return the verbs that the request needs on any API server.

        An apply that created an object needs two. A watch that begins with the existing objects
        replaces a list, which it needs on API servers without such watches.
        """
        if self.verb == "patch" and self.code == CREATED:
            return frozenset({"patch", "create"})
        if self.verb == "watch" and "sendInitialEvents=true" in self.path:
            return frozenset({"watch", "list"})
        return frozenset({self.verb})

    def __str__(self) -> str:
        return f"{self.code} {self.verb} {self.path}"


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource, as a role grants it."""

    role: str
    group: str
    resource: str
    verb: str
    name: str = ""  # of the only object, if it is about one
    namespace: str = ""  # of the only namespace, if it is about one

    def is_used_by(self, request: AuditedRequest) -> bool:
        """Return whether the request needs this permission."""
        return (
            self.verb in request.verbs
            and (self.group, self.resource) == (request.group, request.resource)
            and self.name in ("", request.name)
            and self.namespace in ("", request.namespace)
        )

    def __str__(self) -> str:
        of = f" {self.name}" if self.name else ""
        return f"{self.role}: {self.verb} {self.resource}.{self.group or 'core'}{of}"


def requests_of(log: Path, *users: str, start: int = 0) -> list[AuditedRequest]:
    """The requests of the users in the log, from this byte of it on."""
    with log.open("rb") as file:
        file.seek(start)
        whole, _, _ = file.read().rpartition(b"\n")
    events = (json.loads(line) for line in whole.splitlines())
    return [_audited(each) for each in events if each["user"].get("username") in users]


def _audited(event: Mapping[str, Any]) -> AuditedRequest:
    reference = event.get("objectRef", {})
    parts = (reference.get("resource", ""), reference.get("subresource", ""))
    return AuditedRequest(
        user=event["user"]["username"],
        verb=event["verb"],
        group=reference.get("apiGroup", ""),
        resource="/".join(part for part in parts if part),
        namespace=reference.get("namespace", ""),
        name=reference.get("name", ""),
        code=event["responseStatus"]["code"],
        path=event["requestURI"],
        message=event["responseStatus"].get("message", ""),
    )


def refused(requests: Iterable[AuditedRequest]) -> Sequence[str]:
    """Return the denied requests without duplicates."""
    forbidden = (each for each in requests if each.code == FORBIDDEN)
    return [*dict.fromkeys(str(each) for each in forbidden if BY_A_WEBHOOK not in each.message)]


def unused(rights: Iterable[Permission], requests: Sequence[AuditedRequest]) -> Sequence[str]:
    """Return the permissions that no request used."""
    return [str(each) for each in rights if not any(map(each.is_used_by, requests))]


def permissions_of(
    objects: Iterable[Mapping[str, Any]], account: str, namespace: str
) -> list[Permission]:
    """Return the permissions of the roles that are bound to the ServiceAccount."""
    found = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    granted: list[Permission] = []
    for (kind, _), binding in found.items():
        if kind in ("ClusterRoleBinding", "RoleBinding") and _is_of(binding, account, namespace):
            role = found[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            scope = binding["metadata"]["namespace"] if kind == "RoleBinding" else ""
            granted += _rights(role, scope)
    return granted


def _is_of(binding: Mapping[str, Any], account: str, namespace: str) -> bool:
    return any(
        (each["kind"], each["name"], each.get("namespace"))
        == ("ServiceAccount", account, namespace)
        for each in binding.get("subjects") or ()
    )


def _rights(role: Mapping[str, Any], namespace: str) -> Iterator[Permission]:
    message = f"{role['kind']} {role['metadata']['name']}"
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Permission(message, group, resource, verb, name, namespace)
