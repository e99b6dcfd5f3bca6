"""The manager's own objects: its pods, its configuration, and how they are reached."""

import argparse
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from kftrainer import config
from kftrainer.api.configuration import Configuration
from kftrainer.cli.commands import manager
from tests.integration.chart.conftest import Rendering
from tests.integration.chart.value_sets import (
    ALONE,
    BARE,
    CERT_MANAGER,
    ON_HOSTS,
    PORTS,
    PROVIDED,
    TEAMS,
)
from tests.support.helm import CHART, Object, Values, named, of_kind

MANAGER = "kubeflow-trainer-controller-manager"
CERTIFICATE = "kubeflow-trainer-webhook-tls"
ROOT = CHART.parents[1]


def deployment_in(objects: list[Object]) -> Object:
    return named(objects, "Deployment", MANAGER)


def pod_in(objects: list[Object]) -> Object:
    pod: Object = deployment_in(objects)["spec"]["template"]["spec"]
    return pod


def container_in(objects: list[Object]) -> Object:
    [container] = [each for each in pod_in(objects)["containers"] if each["name"] == "manager"]
    return dict(container)


def configuration_in(objects: list[Object]) -> Configuration:
    [text] = named(objects, "ConfigMap", "kubeflow-trainer-config")["data"].values()
    return config.parse(text, source="the chart")


def flags_in(objects: list[Object]) -> argparse.Namespace:
    """The manager's arguments, as its own parser takes them."""
    parser = argparse.ArgumentParser()
    manager.add_parser(parser.add_subparsers())
    return parser.parse_args(container_in(objects)["args"])


def test_the_chart_is_of_the_version_in_pyproject() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


def test_manager_accepts_its_configuration_and_arguments(objects: list[Object]) -> None:
    settings, flags = configuration_in(objects), flags_in(objects)
    assert str(flags.config) == "/etc/kftrainer/config/controller_manager_config.yaml"
    assert settings.cert_management.webhook_service_name == MANAGER
    mounts = {each["mountPath"]: each["name"] for each in container_in(objects)["volumeMounts"]}
    assert mounts[str(flags.config.parent)] == "config"
    assert all("subPath" not in each for each in container_in(objects)["volumeMounts"])
    for folder in (flags.runtimes, flags.webhook_cert_dir, flags.metrics_cert_dir):
        assert folder is None or str(folder) in mounts
    volumes = {each["name"] for each in pod_in(objects)["volumes"]}
    assert volumes == set(mounts.values())


def test_names_are_those_of_kubeflow_trainer(rendered: Rendering) -> None:
    objects = rendered()
    for kind in ("ServiceAccount", "Service", "Deployment", "ClusterRole", "ClusterRoleBinding"):
        named(objects, kind, MANAGER)
    named(objects, "Secret", "kubeflow-trainer-webhook-cert")
    public = named(objects, "ConfigMap", "kubeflow-trainer-public")
    assert public["data"]["kubeflow_trainer_version"] == "v2.1.0"
    # A Deployment of that chart can be upgraded only if its selector is the same.
    assert deployment_in(objects)["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "kubeflow-trainer",
        "app.kubernetes.io/instance": "kubeflow-trainer",
        "app.kubernetes.io/part-of": "kubeflow",
        "app.kubernetes.io/component": "manager",
    }


def test_another_name_is_everywhere(rendered: Rendering) -> None:
    other = {"fullnameOverride": "mine", "metrics": {"serviceMonitor": {"enabled": True}}}
    objects = rendered(other)
    hooks = {f"{role}.trainer.kubeflow.org" for role in ("validator", "defaulter")}
    fixed = {"kubeflow-trainer-public", *hooks}
    names = {each["metadata"]["name"] for each in objects} - fixed
    assert all(each.startswith("mine-") for each in names), names
    [text] = named(objects, "ConfigMap", "mine-config")["data"].values()
    settings = config.parse(text, source="the chart").cert_management
    assert settings.webhook_service_name == "mine-controller-manager"
    assert settings.webhook_secret_name == named(objects, "Secret")["metadata"]["name"]


@pytest.mark.parametrize("values", [{}, PORTS], ids=["defaults", "others"])
def test_each_port_is_configured_once(rendered: Rendering, values: Values) -> None:
    objects = rendered(values)
    numbers = {each["name"]: each["containerPort"] for each in container_in(objects)["ports"]}
    settings = configuration_in(objects)
    assert settings.health.address == f":{numbers['health']}"
    assert settings.metrics.address == f":{numbers['metrics']}"
    assert settings.webhook.port == numbers["webhook"]
    if values:
        assert sorted(numbers.values()) == [10081, 10443, 11443]
    service = named(objects, "Service")["spec"]
    assert {each["name"]: (each["port"], each["targetPort"]) for each in service["ports"]} == {
        "monitoring-port": (numbers["metrics"], "metrics"),
        "webhook-server": (443, "webhook"),
    }
    template = deployment_in(objects)["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    policy = named(objects, "NetworkPolicy", MANAGER)["spec"]
    allowed = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert allowed == [numbers["webhook"], numbers["metrics"]]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_probes_use_the_configured_port(rendered: Rendering) -> None:
    objects = rendered({"readinessProbe": {"periodSeconds": 7}})
    container, health = container_in(objects), configuration_in(objects).health
    paths = {
        "startupProbe": health.liveness_endpoint_name,
        "livenessProbe": health.liveness_endpoint_name,
        "readinessProbe": health.readiness_endpoint_name,
    }
    for probe, path in paths.items():
        assert container[probe]["httpGet"] == {"path": f"/{path}", "port": "health"}
    assert container["readinessProbe"]["periodSeconds"] == 7
    assert container["readinessProbe"]["timeoutSeconds"] == 3


def test_probe_settings_can_be_omitted(rendered: Rendering) -> None:
    container = container_in(rendered(BARE))
    for probe in ("startupProbe", "livenessProbe"):
        assert list(container[probe]) == ["httpGet"]
    assert container["readinessProbe"]["timeoutSeconds"] == 3


def test_a_new_configuration_means_new_pods(rendered: Rendering) -> None:
    def checksums(values: Values) -> Any:
        return deployment_in(rendered(values))["spec"]["template"]["metadata"]["annotations"]

    before = checksums({})
    assert set(before) == {"checksum/config", "checksum/runtimes"}
    election = checksums({"config": {"leaderElection": {"leaseDuration": "20s"}}})
    assert election["checksum/config"] != before["checksum/config"]
    assert election["checksum/runtimes"] == before["checksum/runtimes"]
    runtimes = checksums({"runtimes": {"plain": {"enabled": False}}})
    assert runtimes["checksum/config"] == before["checksum/config"]
    assert runtimes["checksum/runtimes"] != before["checksum/runtimes"]
    assert checksums({"userRoles": {"create": False}}) == before


def test_replicas_are_spread_and_have_a_disruption_budget(rendered: Rendering) -> None:
    objects = rendered()
    labels = deployment_in(objects)["spec"]["selector"]
    pod = pod_in(objects)
    [term] = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"] == labels
    [spread] = pod["topologySpreadConstraints"]
    assert (spread["whenUnsatisfiable"], spread["labelSelector"]) == ("ScheduleAnyway", labels)
    budget = named(objects, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, labels)
    assert deployment_in(objects)["spec"]["strategy"]["type"] == "RollingUpdate"


def test_a_single_replica_has_no_budget_that_would_block_a_drain(rendered: Rendering) -> None:
    objects = rendered({"replicaCount": 1})
    assert not of_kind(objects, "PodDisruptionBudget")
    assert "affinity" not in pod_in(objects)
    assert "topologySpreadConstraints" not in pod_in(objects)


def test_without_an_election_never_two_work(rendered: Rendering) -> None:
    objects = rendered(ALONE)
    assert deployment_in(objects)["spec"]["strategy"] == {"type": "Recreate"}
    assert not configuration_in(objects).leader_election.leader_elect


def test_host_network_pods_are_recreated_instead_of_rolled(rendered: Rendering) -> None:
    strategy = deployment_in(rendered(ON_HOSTS))["spec"]["strategy"]
    rolling = {"maxSurge": 0, "maxUnavailable": 1}
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": rolling}
    alone = deployment_in(rendered(ON_HOSTS, ALONE))["spec"]["strategy"]
    assert alone["type"] == "Recreate"


def test_own_spreading_gets_the_selector(rendered: Rendering) -> None:
    constraint = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    objects = rendered({"topologySpreadConstraints": [constraint]})
    labels = deployment_in(objects)["spec"]["selector"]
    [found] = pod_in(objects)["topologySpreadConstraints"]
    assert found == {**constraint, "labelSelector": labels}


def test_custom_topology_spread_with_selector_is_unchanged(rendered: Rendering) -> None:
    constraint = {
        "maxSkew": 2,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "trainer"}},
    }
    objects = rendered({"topologySpreadConstraints": [constraint]})
    assert pod_in(objects)["topologySpreadConstraints"] == [constraint]


def test_settings_reach_the_configuration(rendered: Rendering) -> None:
    fields = {
        "leaderElection": {"renewDeadline": "12s", "leaseDuration": "1m", "resourceName": "mine"},
        "controller": {
            "groupKindConcurrency": {"TrainJob": 9, "TrainingRuntime.trainer.kubeflow.org": 3}
        },
        "clientConnection": {"qps": 12.5, "burst": 7},
        "plugins": {"enabled": ["acme"], "disabled": ["Volcano"]},
    }
    found = configuration_in(rendered({"config": fields}))
    assert found.leader_election.renew_deadline.seconds == 12
    assert found.leader_election.lease_duration.seconds == 60
    assert found.leader_election.resource_name == "mine"
    assert found.controller.concurrency("TrainJob") == 9
    assert found.controller.concurrency("TrainingRuntime") == 3
    assert (found.client_connection.qps, found.client_connection.burst) == (12.5, 7)
    assert (found.plugins.enabled, found.plugins.disabled) == (["acme"], ["Volcano"])


def test_disabled_features_are_not_rendered(rendered: Rendering) -> None:
    off = {"webhook": {"enabled": False}, "metrics": {"enabled": False}}
    objects = rendered(off)
    settings = configuration_in(objects)
    assert settings.webhook.address == ""
    assert settings.metrics.address == "0"
    assert [each["name"] for each in container_in(objects)["ports"]] == ["health"]
    kinds = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
    for kind in ("Service", "Secret", *kinds):
        assert not of_kind(objects, kind)
    assert named(objects, "NetworkPolicy", MANAGER)["spec"]["ingress"] == []


@pytest.mark.parametrize("values", [CERT_MANAGER, PROVIDED], ids=["cert-manager", "provided"])
def test_certificates_of_others_are_mounted(rendered: Rendering, values: Values) -> None:
    objects = rendered(values)
    flags = flags_in(objects)
    assert flags.webhook_cert_dir == flags.metrics_cert_dir == Path("/etc/kftrainer/certs")
    assert not configuration_in(objects).cert_management.enable
    [volume] = [each for each in pod_in(objects)["volumes"] if each["name"] == "certs"]
    name = volume["secret"]["secretName"]
    if values is PROVIDED:
        assert name == "mine"
        assert not of_kind(objects, "Certificate")
    else:
        assert named(objects, "Certificate", CERTIFICATE)["spec"]["secretName"] == name
    assert not of_kind(objects, "Secret")


def test_certificates_of_others_are_for_metrics_as_well(rendered: Rendering) -> None:
    objects = rendered(CERT_MANAGER, {"webhook": {"enabled": False}})
    assert flags_in(objects).webhook_cert_dir is None
    assert flags_in(objects).metrics_cert_dir is not None
    objects = rendered(CERT_MANAGER, {"metrics": {"secure": False}})
    assert flags_in(objects).webhook_cert_dir is not None
    assert flags_in(objects).metrics_cert_dir is None
    unused = {"webhook": {"enabled": False}, "metrics": {"secure": False}}
    objects = rendered(CERT_MANAGER, unused)
    assert not of_kind(objects, "Certificate")
    assert not [each for each in pod_in(objects)["volumes"] if each["name"] == "certs"]


def test_namespaces_are_passed_to_the_manager(rendered: Rendering) -> None:
    assert flags_in(rendered({"watchNamespaces": TEAMS})).namespace == TEAMS
    assert flags_in(rendered()).namespace == []


def test_service_account_tokens_are_mounted_only_where_needed(rendered: Rendering) -> None:
    objects = rendered({"crds": {"install": True, "keep": False}})
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert pod_in(objects)["automountServiceAccountToken"] is True
    without = rendered({"serviceAccount": {"automountToken": False}})
    assert pod_in(without)["automountServiceAccountToken"] is False


def test_pods_on_the_nodes_network_still_find_services(rendered: Rendering) -> None:
    pod = pod_in(rendered({"hostNetwork": True}))
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod_in(rendered())["dnsPolicy"] == "ClusterFirst"


def test_pull_secrets_can_be_names_and_are_deduplicated(rendered: Rendering) -> None:
    values = {"global": {"imagePullSecrets": ["a"]}, "imagePullSecrets": [{"name": "a"}, "b"]}
    assert pod_in(rendered(values))["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]


def test_network_policies_allow_required_traffic(rendered: Rendering) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    server = {"ipBlock": {"cidr": "10.0.0.1/32"}}
    extra = {"ports": [{"port": 7000}]}
    policies = {
        "metricsFrom": [peer],
        "apiServer": {"ports": [6443], "to": [server]},
        "extraEgress": [extra],
        "extraIngress": [extra],
    }
    objects = rendered({"networkPolicy": policies})
    spec = named(objects, "NetworkPolicy", MANAGER)["spec"]
    webhook, metrics, more = spec["ingress"]
    assert "from" not in webhook
    assert metrics["from"] == [peer]
    assert more == extra
    api, names, more = spec["egress"]
    assert api == {"ports": [{"port": 6443, "protocol": "TCP"}], "to": [server]}
    requested = {(each["port"], each["protocol"]) for each in names["ports"]}
    assert requested == {(port, protocol) for port in (53, 5353) for protocol in ("TCP", "UDP")}
    assert more == extra
    hooks = named(objects, "NetworkPolicy", "kubeflow-trainer-hooks")["spec"]
    assert hooks["ingress"] == []
    assert hooks["egress"] == spec["egress"]


def test_network_policies_allow_default_cluster_traffic(rendered: Rendering) -> None:
    """Their API servers are behind the Service at one of these ports, resolvers at these two."""
    api, names = named(rendered(), "NetworkPolicy", MANAGER)["spec"]["egress"]
    assert [each["port"] for each in api["ports"]] == [443, 6443, 8443, 16443]
    assert {each["port"] for each in names["ports"]} == {53, 5353}
