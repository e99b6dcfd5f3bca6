"""`helm test`, and the clean-up before the CRDs go: pods with rights of their own, for a while."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from kftrainer.cli.commands import check, purge
from tests.integration.chart.conftest import Rendering
from tests.integration.chart.test_rbac import rights_in
from tests.integration.chart.value_sets import TEAMS
from tests.support.helm import HOOK, NAMESPACE, Object, is_hook, named, of_kind

CRDS_NOT_KEPT: dict[str, Any] = {"crds": {"install": True, "keep": False}}
GROUP = "trainer.kubeflow.org"
DIAGNOSIS = {("deployments.apps", "get"), ("pods", "list")}


def hooks_in(objects: list[Object], event: str) -> list[Object]:
    return [
        each for each in objects if is_hook(each) and each["metadata"]["annotations"][HOOK] == event
    ]


def parsed(add_parser: Callable[[Any], None], pod: Object) -> argparse.Namespace:
    """The arguments of the pod, as the command's own parser takes them."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    [container] = pod["containers"]
    return parser.parse_args(container["args"])


def parsed_arguments(objects: list[Object]) -> argparse.Namespace:
    return parsed(check.add_parser, named(objects, "Pod")["spec"])


def test_helm_test_checks_everything(rendered: Rendering) -> None:
    arguments = parsed_arguments(rendered())
    assert (arguments.namespace, arguments.webhook, arguments.timeout) == (NAMESPACE, True, 60)
    assert len(arguments.runtimes) == 7


def test_helm_test_calls_the_configured_webhook_port(rendered: Rendering) -> None:
    objects = rendered({"watchNamespaces": TEAMS})
    assert parsed_arguments(objects).namespace == TEAMS[0]
    [role] = [
        each
        for each in of_kind(objects, "Role")
        if ("trainjobs.trainer.kubeflow.org", "create") in rights_in(each)
    ]
    assert role["metadata"]["namespace"] == TEAMS[0]
    chosen = rendered({"hooks": {"test": {"namespace": "there", "timeoutSeconds": 5}}})
    assert (parsed_arguments(chosen).namespace, parsed_arguments(chosen).timeout) == ("there", 5)
    without = rendered({"webhook": {"enabled": False}})
    assert parsed_arguments(without).webhook is False
    assert set(rights_in(named(hooks_in(without, "test"), "Role"))) == DIAGNOSIS


def test_helm_test_diagnoses_the_manager_of_its_release(rendered: Rendering) -> None:
    objects = rendered({"watchNamespaces": TEAMS})
    deployment = named(objects, "Deployment")["metadata"]
    assert parsed_arguments(objects).manager == (deployment["namespace"], deployment["name"])
    own = named(hooks_in(objects, "test"), "Role", namespace=NAMESPACE)
    assert set(rights_in(own)) == DIAGNOSIS
    assert own["rules"][0]["resourceNames"] == [deployment["name"]]
    bound = of_kind(hooks_in(objects, "test"), "RoleBinding")
    assert {each["metadata"]["namespace"] for each in bound} == {NAMESPACE, TEAMS[0]}


def test_helm_test_has_minimal_permissions(rendered: Rendering) -> None:
    objects = hooks_in(rendered(), "test")
    dry_run_rules = {(f"trainjobs.{GROUP}", "create")}
    assert set(rights_in(named(objects, "Role"))) == dry_run_rules | DIAGNOSIS
    cluster = set(rights_in(named(objects, "ClusterRole")))
    assert cluster == {(f"clustertrainingruntimes.{GROUP}", "list")}


def test_nothing_is_purged_while_the_crds_stay(rendered: Rendering) -> None:
    for values in ({}, {"crds": {"install": True}}, {"crds": {"install": False, "keep": False}}):
        assert not hooks_in(rendered(values), "pre-delete")


def test_pre_delete_hooks_delete_everything_in_order(rendered: Rendering) -> None:
    objects = hooks_in(rendered(CRDS_NOT_KEPT), "pre-delete")
    job = named(objects, "Job")["spec"]
    arguments = parsed(purge.add_parser, job["template"]["spec"])
    assert (arguments.yes, arguments.timeout, arguments.namespaces) == (True, 240, [])
    assert arguments.timeout < job["activeDeadlineSeconds"] < 300  # which is how long helm waits
    assert job["backoffLimit"] == 1
    assert set(rights_in(named(objects, "ClusterRole"))) == {
        (resource, verb)
        for resource in (
            f"trainjobs.{GROUP}",
            f"trainingruntimes.{GROUP}",
            f"clustertrainingruntimes.{GROUP}",
            "controllerrevisions.apps",
        )
        for verb in ("list", "delete")
    }
    longer = rendered(CRDS_NOT_KEPT, {"hooks": {"purge": {"timeoutSeconds": 900}}})
    spec = named(longer, "Job")["spec"]
    assert parsed(purge.add_parser, spec["template"]["spec"]).timeout == 900
    assert spec["activeDeadlineSeconds"] > 900


@pytest.mark.parametrize("event", ["test", "pre-delete"])
def test_hook_permissions_are_created_before_the_pod_and_deleted_with_it(
    rendered: Rendering, event: str
) -> None:
    objects = hooks_in(rendered(CRDS_NOT_KEPT), event)
    runs = "Pod" if event == "test" else "Job"
    weights = {}
    for each in objects:
        annotations = each["metadata"]["annotations"]
        policy = annotations["helm.sh/hook-delete-policy"].split(",")
        delete_policies = [] if each["kind"] == runs else ["hook-failed"]  # to be looked at
        assert policy == ["before-hook-creation", "hook-succeeded", *delete_policies]
        weights.setdefault(each["kind"], int(annotations["helm.sh/hook-weight"]))
    assert weights[runs] > weights["ClusterRoleBinding"] > weights["ServiceAccount"]
    log_policy = named(objects, runs)["metadata"]["annotations"]["helm.sh/hook-output-log-policy"]
    assert log_policy == "hook-succeeded,hook-failed"


@pytest.mark.parametrize("event", ["test", "pre-delete"])
def test_hook_pods_equal_the_manager_pod_except_for_permissions(
    rendered: Rendering, event: str
) -> None:
    values: dict[str, Any] = {
        "image": {"tag": "9.9"},
        "imagePullSecrets": ["pull"],
        "hooks": {
            "resources": {"limits": {"memory": "1Gi", "cpu": "1"}},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "only", "operator": "Exists"}],
            "podLabels": {"mine": "yes"},
            "podAnnotations": {"sidecar.istio.io/inject": "false"},
        },
    }
    objects = rendered(CRDS_NOT_KEPT, values)
    found = hooks_in(objects, event)
    pod = named(found, "Pod") if event == "test" else named(found, "Job")["spec"]["template"]
    spec = pod["spec"]
    [container] = spec["containers"]
    [manager] = named(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == manager["image"] == "ghcr.io/kftrainer/kftrainer:9.9"
    assert container["resources"]["limits"] == {"memory": "1Gi", "cpu": "1"}
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert spec["tolerations"] == [{"key": "only", "operator": "Exists"}]
    assert spec["restartPolicy"] == "Never"
    assert spec["serviceAccountName"] == named(found, "ServiceAccount")["metadata"]["name"]
    assert pod["metadata"]["labels"]["mine"] == "yes"
    assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    policy = named(objects, "NetworkPolicy", "kubeflow-trainer-hooks")["spec"]
    chosen = policy["podSelector"]["matchLabels"]
    assert chosen.items() <= pod["metadata"]["labels"].items()
    # Nor must they be taken for the manager: no Service, budget or policy of its may find them.
    selector = named(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod["metadata"]["labels"].items()
