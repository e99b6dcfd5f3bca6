"""Sets of values to test: each is rendered once, and checked by several tests."""

from typing import Any

from tests.support.helm import WITHOUT_CRDS, Values, merged

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
TEAMS = ["team-a", "team-b"]
# Not a certificate: only the API server would parse it.
AUTHORITY = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

MONITORS: Values = {"metrics": {"serviceMonitor": {"enabled": True}}}
PROVIDED: Values = {"certs": {"mode": "provided", "existingSecret": "mine", "caBundle": AUTHORITY}}
CERT_MANAGER: Values = {"certs": {"mode": "cert-manager"}}
WITHOUT_MPI: Values = {
    "config": {"plugins": {"disabled": ["MPI"]}},
    "runtimes": {"deepspeedDistributed": {"enabled": False}, "mlxDistributed": {"enabled": False}},
}
WITHOUT_GANGS: Values = {"config": {"plugins": {"disabled": ["CoScheduling", "Volcano"]}}}
ALONE: Values = {"replicaCount": 1, "config": {"leaderElection": {"leaderElect": False}}}
WITHOUT_WEBHOOK: Values = {"webhook": {"enabled": False}}

ALL_DISABLED: Values = {
    **merged(ALONE, WITHOUT_WEBHOOK),
    "metrics": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "runtimes": {"enabled": False},
    "userRoles": {"create": False},
    "publicConfigMap": {"create": False},
    "podDisruptionBudget": {"enabled": False},
    "rbac": {"create": False},
    "managerPolicy": {"enabled": False},
    "serviceAccount": {"create": False, "name": "somebody"},
}
ALL_ENABLED: Values = {
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True},
        "readers": [
            {"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"},
            {"kind": "Group", "name": "operators"},
        ],
    },
    "rbac": {
        "ownerReferencesPermissionEnforcement": True,
        "extraRules": [{"apiGroups": ["acme.example"], "resources": ["runs"], "verbs": ["create"]}],
        "extraNamespacedRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    },
    "runtimes": {"torchDistributedWithCache": {"enabled": True}},
    "crds": {"install": True, "keep": False},
    "hostNetwork": True,
}
ON_HOSTS: Values = {"hostNetwork": True, "webhook": {"port": 10250}, "health": {"port": 10251}}
# All that may be left out; what Kubernetes itself has no default for is left.
BARE: Values = {
    **dict.fromkeys(("affinity", "tolerations", "nodeSelector", "extraVolumes", "sidecars")),
    "startupProbe": None,
    "livenessProbe": dict.fromkeys(
        ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold")
    ),
}
MIRROR: Values = {
    "global": {"imageRegistry": "mirror.example:5000/all", "imagePullSecrets": ["pull"]},
    "image": {"digest": DIGEST},
    "imagePullSecrets": [{"name": "pull"}, {"name": "other"}],
    "runtimes": {
        "imagePullSecrets": ["theirs"],
        "imagePullPolicy": "Always",
        "torchDistributed": {"image": {"digest": DIGEST}},
        "torchDistributedWithCache": {"enabled": True},
    },
}
PORTS: Values = {
    "health": {"port": 10081},
    "metrics": {"port": 10443},
    "webhook": {"port": 11443},
}

CLIENT_CERTIFICATES: Values = {
    "webhook": {
        "clientCA": {"configMapName": "clients", "names": ["kube-apiserver-webhook"]},
        "pathTokens": ["0123456789abcdef", "fedcba9876543210"],
    }
}

CELLS: dict[str, dict[str, Any]] = {
    name: merged(WITHOUT_CRDS, values)
    for name, values in {
        "defaults": {},
        "alone": ALONE,
        "cert-manager": CERT_MANAGER,
        "cert-manager-monitored": merged(CERT_MANAGER, MONITORS),
        "provided": PROVIDED,
        "namespaces": {"watchNamespaces": TEAMS},
        "nothing": ALL_DISABLED,
        "everything": ALL_ENABLED,
        "without-mpi": WITHOUT_MPI,
        "without-gangs": WITHOUT_GANGS,
        "without-webhook": WITHOUT_WEBHOOK,
        "open-metrics": {"metrics": {"secure": False, "podMonitor": {"enabled": True}}},
        "mirror": MIRROR,
        "on-hosts": ON_HOSTS,
        "bare": BARE,
        "ports": PORTS,
        "client-certificates": CLIENT_CERTIFICATES,
    }.items()
}
