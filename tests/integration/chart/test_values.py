"""Values: each is documented and has an effect, and invalid ones are rejected with their path."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.chart.sample_values import FIRST, SECOND
from tests.integration.chart.test_objects import images_in
from tests.integration.chart.value_sets import ALL_ENABLED, AUTHORITY, CELLS
from tests.support.helm import (
    CHART,
    IMAGE,
    WITHOUT_CRDS,
    HelmError,
    Values,
    helm,
    merged,
    named,
    refusal,
    render,
)
from tests.support.object_schemas import problems_of

DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEXT = (CHART / "values.yaml").read_text()
# It has effects but does not appear in an object: other tests cover them.
ELSEWHERE = {"certs.mode"}
# What a switch needs to be of any use.
BASES: Mapping[str, Values] = {
    "config.leaderElection.leaderElect": {"replicaCount": 1},
    "serviceAccount.create": {"serviceAccount": {"name": "somebody"}},
    "metrics.podMonitor.enabled": {"metrics": {"secure": False}},
    "crds.install": {"crds": {"install": True}},
    "crds.keep": {"crds": {"install": True}},
}

Place = tuple[str, ...]


def leaves(values: Mapping[str, Any], before: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value with its place; what is empty, and lists, are values themselves."""
    for key, value in values.items():
        place = (*before, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, place)
        else:
            yield place, value


def words(value: Any) -> Iterator[str]:
    """All scalars of a value, as text."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield key
            yield from words(each)
    elif isinstance(value, list):
        for each in value:
            yield from words(each)
    elif not isinstance(value, bool):
        yield str(value)


def at(values: Mapping[str, Any], place: Place) -> Any:
    """The value at this place; None if it is not set."""
    found: Any = values
    for key in place:
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def with_value(place: Place, value: Any) -> dict[str, Any]:
    for key in reversed(place):
        value = {key: value}
    return dict(value)


def by_path(places: Iterable[Place]) -> dict[str, Place]:
    return {".".join(place): place for place in places}


SWITCHES = by_path(place for place, value in leaves(DEFAULTS) if isinstance(value, bool))
OTHERS = by_path(place for place, value in leaves(DEFAULTS) if not isinstance(value, bool))


@pytest.mark.parametrize("path", [path for path in OTHERS if path not in ELSEWHERE])
def test_every_value_affects_the_rendered_objects(helm_program: Path, path: str) -> None:
    place = OTHERS[path]
    sets = {
        name: sample for name, values in SETS.items() if (sample := at(values, place)) is not None
    }
    assert sets, f"samples.py has none for {path}"
    for name, sample in sets.items():
        assert sample != at(DEFAULTS, place)
        text = rendered_text(helm_program, name)
        if path == "metrics.rules.disabled":
            assert not mentions(text, *sample)
        else:
            assert mentions(text, *words(sample)), sample


SETS = {"first": FIRST, "second": SECOND}


@cache
def rendered_text(program: Path, name: str) -> str:
    """What is rendered, but for the CRDs' schemas, which hold every word."""
    objects = [
        {**each, "spec": {}} if each["kind"] == "CustomResourceDefinition" else each
        for each in render(program, SETS[name])
    ]
    return json.dumps(objects)


def mentions(text: str, *found: str) -> bool:
    """Whether all of these are in the text, not just as a part of another word."""
    tails = (r"(?!\w)" if each[-1].isalnum() else "" for each in found)
    return all(
        re.search(rf"(?<!\w){re.escape(each)}{tail}", text)
        for each, tail in zip(found, tails, strict=True)
    )


@pytest.mark.parametrize("path", SWITCHES)
def test_every_boolean_value_changes_the_manifests(helm_program: Path, path: str) -> None:
    place = SWITCHES[path]
    base = merged(WITHOUT_CRDS, BASES.get(path, {}))
    toggled = merged(base, with_value(place, not at(DEFAULTS, place)))
    assert render(helm_program, toggled) != render(helm_program, base)


def test_schema_contains_exactly_the_existing_values() -> None:
    def schema_paths(schema: Mapping[str, Any], before: str = "") -> Iterator[str]:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        for key, each in schema.get("properties", {}).items():
            yield f"{before}{key}"
            yield from schema_paths(each, f"{before}{key}.")

    there = {*SWITCHES, *OTHERS}
    sections = {path[: end.start()] for path in there for end in re.finditer(r"\.", path)}
    missing = {path for path in there if path not in set(schema_paths(SCHEMA))}
    # Fields of embedded Kubernetes objects need no default.
    undeclared = {
        path
        for path in schema_paths(SCHEMA)
        if path not in there | sections and not any(path.startswith(f"{each}.") for each in there)
    }
    assert {path for path in missing if not _is_free(path)} == set()
    optional = {path for path in undeclared if path.endswith((".claims", ".requests", ".limits"))}
    optional |= {path for path in undeclared if "ecurityContext." in path}
    assert undeclared - optional == {
        "enabled",  # for charts that have this one as a dependency
        "startupProbe.terminationGracePeriodSeconds",
        "livenessProbe.terminationGracePeriodSeconds",
    }


def _is_free(path: str) -> bool:
    """Whether it is within labels, quantities or a piece of a Kubernetes object."""
    free = (".requests.", ".limits.", ".labels.", "ecurityContext.")
    return any(each in path for each in free)


def test_every_value_is_documented() -> None:
    """By a comment above it, or above its neighbour, or above all that it belongs to."""
    documented: dict[int, bool] = {}  # of the lines above, by how far they are indented
    above, undocumented = "", []
    for line in TEXT.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip() and not line.lstrip().startswith("#"):
            user_visible = above.lstrip().startswith("#") or (
                bool(above) and documented.get(depth, False)
            )
            user_visible = user_visible or any(
                schema_paths for each, schema_paths in documented.items() if each < depth
            )
            documented = {
                each: schema_paths for each, schema_paths in documented.items() if each < depth
            }
            documented[depth] = user_visible
            if not user_visible and not line.endswith(":"):
                undocumented.append(line)
        above = line
    assert not undocumented


# The schema's errors for each of these; all are reported at once.
WRONG = {
    "replicaCout=2": "at '': additional properties 'replicaCout' not allowed",
    "metrics.serviceMonitor.enbled=true": "/serviceMonitor': additional properties 'enbled' not",
    "runtimes.torchtune.storage.clasName=x": "at '/runtimes/torchtune/storage': additional",
    "config.leaderElection.leaderelect=true": "at '/config/leaderElection': additional",
    "config.controller.groupKindConcurrency.trainJob=5": "/groupKindConcurrency': additional",
    "resources.limit.memory=1Gi": "at '/resources': additional properties 'limit'",
    "replicaCount=two": "at '/replicaCount': got string, want integer",
    "webhook.enabled=yes": "at '/webhook/enabled': got string, want boolean",
    "webhook.port=70000": "at '/webhook/port': maximum: got 70,000, want 65,535",
    "metrics.port=0": "at '/metrics/port': minimum: got 0, want 1",
    "webhook.timeoutSeconds=31": "at '/webhook/timeoutSeconds': maximum",
    "webhook.pathTokens={UPPER}": "/webhook/pathTokens/0': 'UPPER' does not match pattern",
    "webhook.failurePolicy=fail": "/failurePolicy': value must be one of 'Fail', 'Ignore'",
    "certs.mode=vault": "at '/certs/mode': value must be one of 'self-managed', 'cert-manager'",
    "logLevel=verbose": "at '/logLevel': value must be one of 'debug', 'info'",
    "config.plugins.disabled={mpi}": "at '/config/plugins/disabled/0': value must be one of",
    "config.leaderElection.leaseDuration=15": "at '/config/leaderElection/leaseDuration'",
    "watchNamespaces={Team_A}": "at '/watchNamespaces/0'",
    "image.digest=sha256:12": "at '/image/digest'",
    "image.tag=a b": "at '/image/tag'",
    "commonLabels.team=a b": "at '/commonLabels/team'",
    "metrics.readers[0].kind=Robot": "at '/metrics/readers/0/kind'",
    "metrics.readers[1].kind=ServiceAccount": "/readers/1': missing property 'namespace'",
    "networkPolicy.apiServer.ports=null": "at '/networkPolicy/apiServer': missing property 'ports'",
    "podSecurityContext.runAsNonroot=true": "at '/podSecurityContext': additional properties",
    "securityContext.readonlyRootFilesystem=true": "at '/securityContext': additional properties",
    "strategy.rollingUpdate.maxSruge=1": "at '/strategy/rollingUpdate': additional properties",
    "dnsConfig.nameserver=1": "at '/dnsConfig': additional properties",
    "metrics.rules.certificateDays.warning=0": "at '/metrics/rules/certificateDays/warning'",
    "networkPolicy.dns.ports=null": "at '/networkPolicy/dns': missing property 'ports'",
    "image.repository=host:port/kftrainer": "at '/image/repository'",
    "runtimes.plain.image.repository=Python": "at '/runtimes/plain/image/repository'",
    "fullnameOverride=a-name-with-more-than-forty-four-characters-in-it": "at '/fullnameOverride'",
    "global.imageRegistry=https://mirror.example": "at '/global/imageRegistry'",
    "resources.limits.memory=512MB": "at '/resources/limits/memory'",
    "hooks.resources.requests.cpu=-1": "at '/hooks/resources/requests/cpu'",
    "runtimes.torchtune.storage.size=20ki": "at '/runtimes/torchtune/storage/size'",
    "podLabels.a b=c": "at '/podLabels': additional properties 'a b'",
    "service.annotations.a/b/c=d": "at '/service/annotations': additional properties 'a/b/c'",
    "extraEnv[0].value=8080": "at '/extraEnv/0/value': got number, want string",
    "strategy.rollingUpdate.maxUnavailable=": "at '/strategy/rollingUpdate/maxUnavailable'",
    "networkPolicy.metricsFrom[0].namespaceselector.x=y": "at '/networkPolicy/metricsFrom/0'",
}


@pytest.mark.parametrize(("setting", "message"), WRONG.items(), ids=WRONG)
def test_unknown_or_mistyped_value_is_reported_with_its_path(
    helm_program: Path, setting: str, message: str
) -> None:
    assert message in refused(helm_program)


@cache
def refused(program: Path) -> str:
    return refusal(program, *WRONG)


# What hangs on several values.
CONTRADICTIONS = {
    ("image.repository=",): "image.repository: no image is published yet: build one with `make im",
    ("image.repository=null", "image.registry=null"): "image.repository: no image is published",
    ("global.imageRegistry=mirror.example", "image.repository="): "image.repository: no image is",
    ("webhook.clientCA.secretName=a", "webhook.clientCA.configMapName=b"): (
        "webhook.clientCA.configMapName: webhook.clientCA.secretName is also set"
    ),
    ("webhook.clientCA.names={a}",): "webhook.clientCA.names: has no effect without a cert",
    ("replicaCount=0",): "replicaCount: with 0 replicas and webhook.failurePolicy=Fail every",
    ("config.leaderElection.leaderElect=false",): "replicaCount must be 0 or 1 while leader elec",
    ("config.leaderElection.leaseDuration=9s",): "config.leaderElection.leaseDuration: 9s must be",
    ("config.leaderElection.leaseDuration=1h1ms", "config.leaderElection.renewDeadline=60.5m"): (
        "config.leaderElection.leaseDuration: 1h1ms must be longer than renewDeadline"
    ),
    ("config.leaderElection.retryPeriod=9s",): "config.leaderElection.renewDeadline: 10s must be",
    ("config.leaderElection.retryPeriod=0s",): "config.leaderElection.retryPeriod: must be longer",
    ("config.clientConnection.qps=5", "config.clientConnection.burst=0"): (
        "config.clientConnection.burst: must be at least 1"
    ),
    ("serviceAccount.create=false",): "serviceAccount.name: required",
    ("webhook.port=8443",): "webhook.port: port 8443 is also metrics.port",
    ("metrics.port=8081",): "metrics.port: port 8081 is also health.port",
    ("certs.mode=provided",): "certs.existingSecret: required with certs.mode=provided",
    ("certs.mode=provided", "certs.existingSecret=x"): "certs.caBundle: required with certs.mode=",
    (
        "certs.mode=provided",
        "certs.existingSecret=x",
        "webhook.annotations.note=ours",
    ): "certs.caBundle: required with certs.mode=",
    ("certs.existingSecret=x",): "certs.existingSecret: only used with certs.mode=provided",
    ("certs.caBundle=x",): "certs.caBundle: only used with certs.mode=provided",
    ("certs.certManager.issuerRef.kind=Issuer",): "certs.certManager.issuerRef.name: required",
    ("metrics.enabled=false", "metrics.serviceMonitor.enabled=true"): (
        "metrics.serviceMonitor.enabled: requires metrics.enabled=true"
    ),
    ("metrics.enabled=false", "metrics.podMonitor.enabled=true"): (
        "metrics.podMonitor.enabled: requires metrics.enabled=true"
    ),
    ("metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true"): (
        "metrics.podMonitor.enabled: metrics.serviceMonitor.enabled is also true"
    ),
    ("metrics.podMonitor.enabled=true",): "metrics.podMonitor.authorization: a PodMonitor cannot",
    ("podDisruptionBudget.maxUnavailable=",): "podDisruptionBudget.maxUnavailable: set this or",
    ("podDisruptionBudget.maxUnavailable=0",): "podDisruptionBudget.maxUnavailable: with 0 no",
    ("podDisruptionBudget.maxUnavailable=0%",): "podDisruptionBudget.maxUnavailable: with 0% no",
    ("podDisruptionBudget.minAvailable=2",): "podDisruptionBudget.minAvailable: 2 is all of the 2",
    ("podDisruptionBudget.minAvailable=51%",): "podDisruptionBudget.minAvailable: 51% is all of",
    ("metrics.port=443",): "metrics.port: 443 is the port of the webhook in the Service",
    ("dnsPolicy=None",): "dnsConfig.nameservers: required if dnsPolicy",
    ("extraVolumes[0].name=tmp",): "extraVolumes: the name tmp is used by",
    ("sidecars[0].name=manager",): "sidecars: the name manager is used",
    ("initContainers[0].name=manager",): "initContainers: the name manager is used",
    (
        "replicaCount=1",
        "config.leaderElection.leaderElect=false",
        "strategy.rollingUpdate.maxSurge=0",
    ): "strategy.type: must be Recreate if config.leaderElection.leaderElect is false",
    ("strategy.type=Recreate", "strategy.rollingUpdate.maxSurge=0"): (
        "strategy.rollingUpdate: not allowed with strategy.type=Recreate"
    ),
    ("metrics.rules.certificateDays.critical=21",): (
        "metrics.rules.certificateDays.warning: 21 must be more than critical"
    ),
    ("metrics.rules.enabled=true", "metrics.rules.certificateDays.warning=90"): (
        "metrics.rules.certificateDays.warning: 90 must be less than 90"
    ),
    ("certs.mode=cert-manager", "certs.certManager.renewBefore=8760h"): (
        "certs.certManager.renewBefore: 8760h must be shorter than duration"
    ),
    ("certs.mode=cert-manager", "certs.certManager.duration=43801h"): (
        "certs.certManager.duration: 43801h must not be longer than 43800h"
    ),
    (
        "certs.mode=cert-manager",
        "metrics.rules.enabled=true",
        "certs.certManager.renewBefore=504h",
    ): "certs.certManager.renewBefore: 504h must be longer than the 21 days",
    ("image.repository=registry.example:5000/x",): (
        "image.repository: registry.example:5000/x contains a registry, and image.registry is"
    ),
    ("image.repository=registry.example.com/ml/kftrainer",): (
        "image.repository: registry.example.com/ml/kftrainer contains a registry, and"
    ),
    ("runtimes.plain.image.tag=",): "runtimes.plain.image: a tag or a digest is",
    ("runtimes.torchtune.modelInitializerImage.tag=",): (
        "runtimes.torchtune.modelInitializerImage: a tag or a digest is"
    ),
    ("config.plugins.disabled={MPI}", "runtimes.mlxDistributed.enabled=false"): (
        "config.plugins.disabled: the runtime deepspeed-distributed needs the plugin MPI"
    ),
    ("config.plugins.disabled={Torch}", "runtimes.torchDistributed.enabled=false"): (
        "config.plugins.disabled: the runtime torchtune-llama3.2-1b needs the plugin Torch"
    ),
    (
        "config.controller.groupKindConcurrency.TrainJob=10",
        r"config.controller.groupKindConcurrency.TrainJob\.trainer\.kubeflow\.org=5",
    ): "config.controller.groupKindConcurrency: TrainJob is set twice",
    ("strategy.rollingUpdate.maxSurge=0", "strategy.rollingUpdate.maxUnavailable=0%"): (
        "strategy.rollingUpdate.maxSurge: maxSurge and maxUnavailable are both 0"
    ),
    ("certs.mode=provided", "certs.existingSecret=x", "certs.caBundle=ca.crt"): (
        "certs.caBundle: neither PEM nor base64"
    ),
    ("certs.mode=provided", "certs.existingSecret=x", "certs.caBundle=YWJjZA=="): (
        "certs.caBundle: neither PEM nor base64"
    ),
    ("metrics.serviceMonitor.scrapeTimeout=1m1s", "metrics.serviceMonitor.interval=1m"): (
        "metrics.serviceMonitor.scrapeTimeout: 1m1s must not be longer than interval"
    ),
    ("metrics.podMonitor.scrapeTimeout=1d", "metrics.podMonitor.interval=23h"): (
        "metrics.podMonitor.scrapeTimeout: 1d must not be longer than interval"
    ),
}


@pytest.mark.parametrize(
    ("settings", "message"), CONTRADICTIONS.items(), ids=map(str, CONTRADICTIONS)
)
def test_conflicting_values_are_reported_with_their_paths(
    helm_program: Path, settings: tuple[str, ...], message: str
) -> None:
    assert message in refusal(helm_program, *settings)


def test_too_long_release_name_is_rejected(helm_program: Path) -> None:
    name = "a-release-with-a-name-of-more-than-forty-four-chars"
    with pytest.raises(AssertionError, match="fullnameOverride: the release name"):
        helm(helm_program, "template", name, str(CHART), values=IMAGE)
    short = merged(IMAGE, {"fullnameOverride": "short"})
    helm(helm_program, "template", name, str(CHART), values=short)


@pytest.mark.parametrize("name", ["123", "1e3", "a.b"])
def test_release_name_invalid_for_a_service_is_rejected(helm_program: Path, name: str) -> None:
    with pytest.raises(HelmError, match=f"fullnameOverride: the release name {name} is not"):
        render(helm_program, WITHOUT_CRDS, name=name)
    assert render(helm_program, {**WITHOUT_CRDS, "fullnameOverride": "short"}, name=name)


@pytest.mark.parametrize("name", ["cluster", "kubeflow"])
def test_release_name_colliding_with_a_well_known_role_is_rejected(
    helm_program: Path, name: str
) -> None:
    with pytest.raises(HelmError, match=f"the ClusterRole {name}-admin exists in every cluster"):
        render(helm_program, WITHOUT_CRDS, name=name)
    free: Values = {"userRoles": {"create": False}}
    assert render(helm_program, merged(WITHOUT_CRDS, free), name=name)


# Each can be a name, and is something else where it is not in quotes.
ODD = ("true", "123", "1e3", "0x10")


@pytest.mark.parametrize("name", ODD)
def test_name_that_resembles_another_type_stays_a_string(helm_program: Path, name: str) -> None:
    values = merged(
        ALL_ENABLED,
        WITHOUT_CRDS,
        {
            "fullnameOverride": "short",
            "watchNamespaces": [name],
            "priorityClassName": name,
            "runtimeClassName": name,
            "serviceAccount": {"name": name},
            "imagePullSecrets": [name],
            "image": {"registry": "", "repository": "1", "tag": "30"},
            "certs": {"mode": "provided", "existingSecret": name, "caBundle": AUTHORITY},
            "config": {"leaderElection": {"resourceName": name}},
            "metrics": {
                "readers": [{"kind": "ServiceAccount", "name": name, "namespace": name}],
                "rules": {"namespace": name},
            },
            "runtimes": {"torchtune": {"storage": {"className": name}}},
        },
    )
    objects = render(helm_program, values, name=name, namespace=name)
    for each in objects:
        metadata = each["metadata"]
        assert metadata["labels"]["app.kubernetes.io/instance"] == name
        assert metadata.get("namespace", name) == name
        if not each["apiVersion"].startswith("monitoring."):
            assert not problems_of(each), (each["kind"], metadata["name"], problems_of(each))
    files = {
        path: yaml.safe_load(text)
        for each in objects
        if each["kind"] == "ConfigMap" and "dashboard" not in each["metadata"]["name"]
        for path, text in each["data"].items()
    }
    settings = files["controller_manager_config.yaml"]
    assert settings["leaderElection"]["resourceName"] == name
    assert settings["certManagement"]["webhookSecretName"] == name
    spec = files["torchtune-llama3.2-1b.yaml"]["spec"]["template"]["spec"]
    [claim] = spec["volumeClaimPolicies"][0]["templates"]
    assert claim["spec"]["storageClassName"] == name


EMPTY = [place for place, value in leaves(DEFAULTS) if value in ("", [], {})]


@pytest.mark.parametrize("name", ["defaults", "everything", "cert-manager-monitored"])
def test_empty_values_render_like_defaults(helm_program: Path, name: str) -> None:
    """As `affinity:` with nothing behind it, which helm takes for a value that is to go."""
    placed_values = {place for place, _ in leaves(CELLS[name])}
    placed_values |= {place for place, _ in leaves(IMAGE)}
    unset = [with_value(place, None) for place in EMPTY if place not in placed_values]
    found = render(helm_program, merged(CELLS[name], *unset))
    assert found == render(helm_program, CELLS[name])


def test_image_repository_can_contain_a_registry(helm_program: Path) -> None:
    image = {"registry": "", "repository": "registry.example:5000/ml/kftrainer", "tag": "1"}
    objects = render(
        helm_program, {**WITHOUT_CRDS, "image": image, "runtimes": {"plain": {"image": image}}}
    )
    assert images_in(objects) >= {"registry.example:5000/ml/kftrainer:1"}
    assert sum(json.dumps(each).count("registry.example:5000/ml/") for each in objects) == 3


def test_a_mirror_may_have_a_folder_for_each_host(helm_program: Path) -> None:
    image = {"repository": "registry.example/ml/kftrainer", "tag": "1"}
    values = {**WITHOUT_CRDS, "global": {"imageRegistry": "mirror.example"}, "image": image}
    assert images_in(render(helm_program, values)) >= {
        "mirror.example/registry.example/ml/kftrainer:1"
    }


@pytest.mark.parametrize("qps", [0, 0.5, 1_000_000, 0.00001])
def test_number_stays_a_number_in_the_configuration(helm_program: Path, qps: float) -> None:
    """Helm would write 1e+06, which is a word in YAML."""
    values = merged(WITHOUT_CRDS, {"config": {"clientConnection": {"qps": qps}}})
    config = named(render(helm_program, values), "ConfigMap", "kubeflow-trainer-config")
    settings = config["data"]["controller_manager_config.yaml"]
    assert yaml.safe_load(settings)["clientConnection"]["qps"] == qps


def test_values_of_other_charts_are_not_in_the_way(helm_program: Path) -> None:
    values = {"global": {"theirs": 1}, "enabled": True}
    assert render(helm_program, merged(WITHOUT_CRDS, values))


def test_security_context_can_be_omitted_for_openshift(helm_program: Path) -> None:
    free = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    objects = render(helm_program, merged(WITHOUT_CRDS, {"podSecurityContext": free}))
    [pod] = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
