"""How Prometheus finds and reads the metrics; its kinds are not known to Kubernetes itself."""

from typing import Any

import pytest

from tests.integration.chart.conftest import Rendering
from tests.integration.chart.test_manager import (
    CERTIFICATE,
    MANAGER,
    container_in,
    deployment_in,
)
from tests.integration.chart.value_sets import CERT_MANAGER
from tests.support.helm import NAMESPACE, Object, named, of_kind

OF_SERVICE, OF_PODS = "serviceMonitor", "podMonitor"
TOKEN = {"type": "Bearer", "credentials": {"name": "token", "key": "token"}}
KINDS = {
    OF_SERVICE: ("ServiceMonitor", "endpoints"),
    OF_PODS: ("PodMonitor", "podMetricsEndpoints"),
}


def metrics(which: str, **values: Any) -> dict[str, Any]:
    more = values.pop("metrics", {})
    return {"metrics": {which: {"enabled": True, "authorization": TOKEN, **values}, **more}}


def monitor_in(objects: list[Object], which: str) -> tuple[Object, Object]:
    kind, field = KINDS[which]
    found = named(objects, kind)
    [endpoint] = found["spec"][field]
    return found, dict(endpoint)


def test_no_monitor_is_rendered_by_default(rendered: Rendering) -> None:
    assert not [each for each in rendered() if each["apiVersion"].startswith("monitoring")]


def test_service_monitor_selects_the_service_and_sends_the_token_of_prometheus(
    rendered: Rendering,
) -> None:
    objects = rendered({"metrics": {"serviceMonitor": {"enabled": True}}})
    monitor, endpoint = monitor_in(objects, OF_SERVICE)
    service = named(objects, "Service")
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}
    assert endpoint == {
        "port": "monitoring-port",
        "path": "/metrics",
        "scheme": "https",
        "interval": "30s",
        "honorLabels": True,
        "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "tlsConfig": {"insecureSkipVerify": True},
    }
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}


def test_a_pod_monitor_selects_the_pods(rendered: Rendering) -> None:
    objects = rendered(metrics(OF_PODS), {"selectorLabels": {"more": "of-them"}})
    monitor, endpoint = monitor_in(objects, OF_PODS)
    labels = deployment_in(objects)["spec"]["template"]["metadata"]["labels"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector == deployment_in(objects)["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels.items()
    assert selector["more"] == "of-them"
    assert endpoint["port"] in {each["name"] for each in container_in(objects)["ports"]}
    assert endpoint["authorization"] == TOKEN
    assert "bearerTokenFile" not in endpoint


@pytest.mark.parametrize("which", KINDS)
def test_monitor_with_all_values(rendered: Rendering, which: str) -> None:
    rule = {"sourceLabels": ["pod"], "targetLabel": "pod_name"}
    drop = {"sourceLabels": ["__name__"], "regex": "python_.*", "action": "drop"}
    scraped = metrics(
        which,
        namespace="monitoring",
        labels={"release": "prometheus"},
        annotations={"note": "ours"},
        interval="1m",
        scrapeTimeout="20s",
        relabelings=[rule],
        metricRelabelings=[drop],
        tlsConfig={"serverName": "mine"},
    )
    monitor, endpoint = monitor_in(rendered(scraped), which)
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["metadata"]["annotations"] == {"note": "ours"}
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("1m", "20s")
    assert endpoint["relabelings"] == [rule]
    assert endpoint["metricRelabelings"] == [drop]
    assert endpoint["tlsConfig"] == {"serverName": "mine"}
    assert endpoint["authorization"] == TOKEN


@pytest.mark.parametrize("which", KINDS)
def test_open_metrics_need_no_token_and_no_tls(rendered: Rendering, which: str) -> None:
    values = {"metrics": {which: {"enabled": True}, "secure": False}}
    _, endpoint = monitor_in(rendered(values), which)
    assert endpoint["scheme"] == "http"
    assert not {"tlsConfig", "bearerTokenFile", "authorization"} & set(endpoint)


def test_the_authority_of_cert_manager_is_trusted_where_it_can_be_read(rendered: Rendering) -> None:
    objects = rendered(CERT_MANAGER, {"metrics": {"serviceMonitor": {"enabled": True}}})
    _, endpoint = monitor_in(objects, OF_SERVICE)
    certificate = named(objects, "Certificate", CERTIFICATE)["spec"]
    assert endpoint["tlsConfig"] == {
        "serverName": f"{MANAGER}.{NAMESPACE}.svc",
        "ca": {"secret": {"name": certificate["secretName"], "key": "ca.crt"}},
    }
    assert endpoint["tlsConfig"]["serverName"] in certificate["dnsNames"]
    elsewhere = {"serviceMonitor": {"enabled": True, "namespace": "monitoring"}}
    _, endpoint = monitor_in(rendered(CERT_MANAGER, {"metrics": elsewhere}), OF_SERVICE)
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}


def test_only_one_of_them(rendered: Rendering) -> None:
    assert not of_kind(rendered(metrics(OF_PODS)), "ServiceMonitor")
    assert not of_kind(rendered(metrics(OF_SERVICE)), "PodMonitor")


def test_certificate_renewal_threshold_is_configurable(rendered: Rendering) -> None:
    def thresholds(**values: Any) -> dict[str, str]:
        objects = rendered({"metrics": {"rules": {"enabled": True, **values}}})
        rules = named(objects, "PrometheusRule")["spec"]["groups"]
        each = [rule for group in rules for rule in group["rules"]]
        return {
            rule["alert"].removeprefix("KftrainerCertificate"): rule["expr"].rpartition("<")[2]
            for rule in each
            if "certificate_expiry" in rule["expr"]
        }

    assert thresholds() == {"Expiring": " 21 * 86400\n", "AlmostExpired": " 3 * 86400\n"}
    # Each is put in for its own, also where it is what the other was.
    changed = thresholds(certificateDays={"warning": 3, "critical": 1.5})
    assert changed == {"Expiring": " 3 * 86400\n", "AlmostExpired": " 1.5 * 86400\n"}
