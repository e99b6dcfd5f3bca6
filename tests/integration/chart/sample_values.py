"""A value for everything that is not a switch, found nowhere else, so that it can be looked for.

What cannot go together is in one of two sets.
"""

from base64 import b64encode
from typing import Any

from tests.integration.chart.value_sets import AUTHORITY, DIGEST

Sample = dict[str, Any]
BUNDLE = b64encode(AUTHORITY.encode()).decode()


def image(name: str) -> Sample:
    return {"registry": f"{name}.example", "repository": f"of/{name}", "tag": f"tag-{name}"}


def resources(name: str) -> Sample:
    return {"limits": {f"{name}.example/device": "3"}}


def monitor(name: str) -> Sample:
    return {
        "enabled": True,
        "namespace": f"{name}-namespace",
        "labels": {f"{name}-label": f"{name}-label-value"},
        "annotations": {f"{name}-annotation": f"{name}-annotation-value"},
        "interval": "41s",
        "scrapeTimeout": "37s",
        "relabelings": [{"targetLabel": f"{name}_relabeled"}],
        "metricRelabelings": [{"targetLabel": f"{name}_metric_relabeled"}],
        "tlsConfig": {"serverName": f"{name}-server"},
        "authorization": {"credentials": {"name": f"{name}-credentials"}},
    }


def probe(number: int) -> Sample:
    fields = ("initialDelay", "period", "timeout")
    seconds = {f"{field}Seconds": number + at for at, field in enumerate(fields)}
    return {**seconds, "failureThreshold": number + 3}


def peer(name: str) -> list[Sample]:
    return [{"podSelector": {"matchLabels": {"peer": name}}}]


def named(name: str) -> Sample:
    return {f"{name}-key": f"{name}-value"}


FIRST: Sample = {
    "global": {"imagePullSecrets": ["global-pull"]},
    "fullnameOverride": "another-name",
    "commonLabels": named("common-label"),
    "commonAnnotations": named("common-annotation"),
    "image": {**image("own"), "pullPolicy": "Always"},
    "imagePullSecrets": ["own-pull"],
    "replicaCount": 4,
    "watchNamespaces": ["watched-namespace"],
    "logLevel": "warning",
    "logFormat": "console",
    "config": {
        "leaderElection": {
            "leaseDuration": "91s",
            "renewDeadline": "61s",
            "retryPeriod": "31s",
            "resourceName": "another-lease",
        },
        "controller": {"groupKindConcurrency": {"TrainJob": 137}},
        "clientConnection": {"qps": 139, "burst": 149},
        "plugins": {"enabled": ["acme-plugin"], "disabled": ["PlainML"]},
        "admission": {"stringNumProcPerNode": "Reject"},
    },
    "deploymentLabels": named("deployment-label"),
    "deploymentAnnotations": named("deployment-annotation"),
    "podLabels": named("pod-label"),
    "podAnnotations": named("pod-annotation"),
    "selectorLabels": named("selector-label"),
    "extraArgs": ["--burst=151"],
    "extraEnv": [{"name": "EXTRA_ENV", "value": "extra-env-value"}],
    "extraEnvFrom": [{"configMapRef": {"name": "extra-env-from"}}],
    "extraVolumes": [{"name": "extra-volume", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "extra-volume", "mountPath": "/extra-mount"}],
    "initContainers": [{"name": "extra-init", "image": "init.example/x:1"}],
    "sidecars": [{"name": "extra-sidecar", "image": "sidecar.example/x:1"}],
    "resources": {"requests": {"cpu": "157m", "memory": "163Mi"}, "limits": {"memory": "167Mi"}},
    "nodeSelector": named("node-label"),
    "tolerations": [{"key": "tolerated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"affine": "to-this"}},
    "topologySpreadConstraints": [
        {"maxSkew": 173, "topologyKey": "spread-key", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "priorityClassName": "some-priority",
    "runtimeClassName": "some-runtime-class",
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 179}},
    "revisionHistoryLimit": 181,
    "terminationGracePeriodSeconds": 191,
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["192.0.2.53"]},
    "podSecurityContext": {
        "runAsUser": 1001,
        "runAsGroup": 1002,
        "fsGroup": 1003,
        "seccompProfile": {"type": "Localhost"},
    },
    "securityContext": {"capabilities": {"drop": ["SOME_CAPABILITY"]}},
    "startupProbe": probe(211),
    "livenessProbe": probe(223),
    "readinessProbe": {**probe(233), "successThreshold": 241},
    "podDisruptionBudget": {"minAvailable": "43%"},
    "service": {
        "annotations": named("service-annotation"),
        "labels": named("service-label"),
        "type": "NodePort",
        "ipFamilyPolicy": "PreferDualStack",
    },
    "serviceAccount": {"name": "another-account", "annotations": named("account-annotation")},
    "rbac": {
        "extraRules": [{"apiGroups": ["extra.example"], "resources": ["x"], "verbs": ["get"]}],
        "extraNamespacedRules": [
            {"apiGroups": ["there.example"], "resources": ["y"], "verbs": ["get"]}
        ],
    },
    "managerPolicy": {
        "secretTypes": ["example.com/secret-type"],
        "protectedNamespaces": ["protected-namespace"],
    },
    "health": {"port": 10081},
    "webhook": {
        "port": 10082,
        "failurePolicy": "Ignore",
        "timeoutSeconds": 23,
        "namespaceSelector": {"matchLabels": named("namespace-label")},
        "annotations": named("webhook-annotation"),
        "clientCA": {"secretName": "client-authority", "key": "authority.crt", "names": ["caller"]},
        "pathTokens": ["0123456789abcdef", "plain"],
    },
    "certs": {
        "mode": "cert-manager",
        "certManager": {
            "issuerRef": {"name": "some-issuer"},
            "duration": "1009h",
            "renewBefore": "997h",
        },
        "clusterDomain": "domain.example",
    },
    "metrics": {
        "port": 10083,
        "readers": [{"kind": "Group", "name": "some-readers"}],
        "serviceMonitor": monitor("service-monitor"),
        "rules": {
            "enabled": True,
            "namespace": "rules-namespace",
            "labels": named("rules-label"),
            "annotations": named("rules-annotation"),
            "job": "some-job",
            "runbookUrl": "https://runbooks.example/",
            "severities": {"KftrainerDown": "some-severity"},
        },
        "dashboard": {
            "enabled": True,
            "namespace": "dashboard-namespace",
            "labels": {"grafana_dashboard": "another-board"},
            "annotations": named("dashboard-annotation"),
        },
    },
    "networkPolicy": {
        "webhookFrom": peer("webhook-peer"),
        "metricsFrom": peer("metrics-peer"),
        "apiServer": {"ports": [10084], "to": peer("api-peer")},
        "dns": {"ports": [10085]},
        "extraIngress": [{"from": peer("extra-ingress")}],
        "extraEgress": [{"to": peer("extra-egress")}],
    },
    "crds": {"install": True, "keep": False, "annotations": named("crd-annotation")},
    "runtimes": {
        "labels": named("runtime-label"),
        "annotations": named("runtime-annotation"),
        "imagePullSecrets": ["runtime-pull"],
        "imagePullPolicy": "Never",
        "plain": {"image": image("plain"), "resources": resources("plain")},
        "torchDistributed": {"image": image("torch"), "resources": resources("torch")},
        "torchDistributedWithCache": {
            "enabled": True,
            "image": image("cached"),
            "initializerImage": image("initializer"),
            "cacheImage": image("cache"),
            "resources": resources("cached"),
        },
        "deepspeedDistributed": {"image": image("deepspeed"), "resources": resources("deepspeed")},
        "mlxDistributed": {"image": image("mlx"), "resources": resources("mlx")},
        "torchtune": {
            "image": image("tune"),
            "datasetInitializerImage": image("dataset"),
            "modelInitializerImage": image("model"),
            "resources": {"limits": {"nvidia.com/gpu": "293"}},
            "storage": {
                "size": "257Gi",
                "className": "some-class",
                "accessModes": ["ReadWriteOncePod"],
            },
        },
    },
    "hooks": {
        "resources": {
            "requests": {"cpu": "263m", "memory": "269Mi"},
            "limits": {"memory": "271Mi"},
        },
        "nodeSelector": named("hook-node"),
        "tolerations": [{"key": "hook-tolerated", "operator": "Exists"}],
        "podLabels": named("hook-label"),
        "podAnnotations": named("hook-annotation"),
        "test": {"namespace": "test-namespace", "timeoutSeconds": 277},
        "purge": {"timeoutSeconds": 281},
    },
}

RUNTIME_IMAGES = ("plain", "torchDistributed", "deepspeedDistributed", "mlxDistributed")


def digest(number: int) -> Sample:
    return {"digest": f"{DIGEST[:-4]}{number:04d}"}


SECOND: Sample = {
    "global": {"imageRegistry": "mirror.example"},
    "image": digest(1),
    "podDisruptionBudget": {"maxUnavailable": 283},
    "webhook": {"clientCA": {"configMapName": "client-authorities"}},
    "certs": {"mode": "provided", "existingSecret": "some-secret", "caBundle": BUNDLE},
    "metrics": {
        "podMonitor": monitor("pod-monitor"),
        "rules": {
            "enabled": True,
            "disabled": ["KftrainerNoLeader"],
            "certificateDays": {"warning": 317, "critical": 311},
        },
    },
    "runtimes": {
        **{name: {"image": digest(at)} for at, name in enumerate(RUNTIME_IMAGES, start=2)},
        "torchDistributedWithCache": {
            "enabled": True,
            "image": digest(6),
            "initializerImage": digest(7),
            "cacheImage": digest(8),
        },
        "torchtune": {
            "image": digest(9),
            "datasetInitializerImage": digest(10),
            "modelInitializerImage": digest(11),
        },
    },
}
