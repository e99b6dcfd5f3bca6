"""Rights: what the manager and the hooks need, and nothing besides."""

from collections.abc import Iterator

import pytest

from kftrainer.runtime.framework.extension_points import RBACExtension
from kftrainer.runtime.plugins import PLUGINS
from tests.integration.chart.conftest import Rendering
from tests.integration.chart.test_manager import MANAGER
from tests.integration.chart.value_sets import (
    ALONE,
    CERT_MANAGER,
    TEAMS,
    WITHOUT_GANGS,
    WITHOUT_MPI,
    WITHOUT_WEBHOOK,
)
from tests.support.helm import NAMESPACE, Object, Values, is_hook, named, of_kind

Permission = tuple[str, str]  # a resource and a verb
GANGS = {"podgroups.scheduling.x-k8s.io", "podgroups.scheduling.volcano.sh"}
READ, WRITE = {"list", "watch"}, {"create", "patch"}


def rights_in(role: Object) -> Iterator[Permission]:
    """Each right of a role, which names no resource if it is for all."""
    for rule in role["rules"]:
        for group in rule.get("apiGroups", ()):
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield f"{resource}.{group}".rstrip("."), verb


def verbs(role: Object, resource: str) -> set[str]:
    """What the role lets one do with the resource."""
    return {verb for found, verb in rights_in(role) if found == resource}


def cluster_role(objects: list[Object], name: str = MANAGER) -> Object:
    return named(objects, "ClusterRole", name)


def test_no_role_has_wildcards_or_escalation_verbs(objects: list[Object]) -> None:
    for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role")):
        for resource, verb in rights_in(role):
            assert "*" not in resource + verb
            assert verb not in ("escalate", "bind", "impersonate")


def test_bindings_are_of_roles_and_subjects_that_are_there(objects: list[Object]) -> None:
    existing_names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for binding in (*of_kind(objects, "ClusterRoleBinding"), *of_kind(objects, "RoleBinding")):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in existing_names
        for subject in binding["subjects"]:
            if subject["kind"] == "ServiceAccount" and subject["namespace"] == NAMESPACE:
                assert ("ServiceAccount", subject["name"]) in existing_names


def test_cluster_role_of_the_manager(rendered: Rendering) -> None:
    role = cluster_role(rendered())
    assert {resource: verbs(role, resource) for resource, _ in rights_in(role)} == {
        "trainjobs.trainer.kubeflow.org": READ,
        "trainjobs/status.trainer.kubeflow.org": {"patch"},
        "trainingruntimes.trainer.kubeflow.org": {"get", *READ, "patch"},
        "clustertrainingruntimes.trainer.kubeflow.org": {"get", *READ, *WRITE, "delete"},
        "controllerrevisions.apps": {"get", *READ, "create", "delete"},
        "jobsets.jobset.x-k8s.io": {"get", *READ, *WRITE, "delete"},
        "resourceclaimtemplates.resource.k8s.io": READ,
        "jobs.batch": READ,
        "events": {*READ, *WRITE},
        "pods": {"list"},
        "secrets": WRITE,
        "configmaps": {"get", *READ, *WRITE},
        **{gang: {"get", *READ, *WRITE} for gang in GANGS},
        "limitranges": READ,
        "runtimeclasses.node.k8s.io": READ,
        "priorityclasses.scheduling.k8s.io": {"get", *READ},
        "validatingwebhookconfigurations.admissionregistration.k8s.io": {"get", *READ, "update"},
        "mutatingwebhookconfigurations.admissionregistration.k8s.io": {"get", *READ, "update"},
        "tokenreviews.authentication.k8s.io": {"create"},
        "subjectaccessreviews.authorization.k8s.io": {"create"},
    }
    names = {
        tuple(rule["resources"]): rule["resourceNames"]
        for rule in role["rules"]
        if rule["apiGroups"] == ["admissionregistration.k8s.io"]
    }
    assert names == {
        ("validatingwebhookconfigurations",): ["validator.trainer.kubeflow.org"],
        ("mutatingwebhookconfigurations",): ["defaulter.trainer.kubeflow.org"],
    }


def test_namespaced_role_of_the_manager(rendered: Rendering) -> None:
    role = named(rendered(), "Role", MANAGER)
    assert [
        (rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in role["rules"]
    ] == [
        (["leases"], None, ["create"]),
        (["leases"], ["trainer.kubeflow.org"], ["get", "update"]),
        (["secrets"], ["kubeflow-trainer-webhook-cert"], ["get", "list", "watch", "update"]),
    ]
    [_, lease, _] = named(
        rendered({"config": {"leaderElection": {"resourceName": "mine"}}}), "Role", MANAGER
    )["rules"]
    assert lease["resourceNames"] == ["mine"]


def test_disabled_features_have_no_permissions(rendered: Rendering) -> None:
    alone = rendered(ALONE, CERT_MANAGER)
    assert not [each for each in of_kind(alone, "Role") if each["metadata"]["name"] == MANAGER]
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        assert not verbs(cluster_role(alone), f"{kind}.admissionregistration.k8s.io")
    without = cluster_role(rendered(WITHOUT_WEBHOOK))
    assert verbs(without, "trainingruntimes.trainer.kubeflow.org") == {"get", *READ, "patch"}
    assert "get" in verbs(without, "clustertrainingruntimes.trainer.kubeflow.org")
    assert verbs(without, "priorityclasses.scheduling.k8s.io") == READ
    for values in ({"metrics": {"secure": False}}, {"metrics": {"enabled": False}}):
        objects = rendered(values)
        assert not verbs(cluster_role(objects), "tokenreviews.authentication.k8s.io")
        names = {each["metadata"]["name"] for each in of_kind(objects, "ClusterRole")}
        assert "kubeflow-trainer-metrics-reader" not in names
    own = cluster_role(rendered({"runtimes": {"enabled": False}}))
    runtimes = verbs(own, "clustertrainingruntimes.trainer.kubeflow.org")
    assert runtimes == {"get", *READ, "patch"}


def declared(*plugins: type) -> set[Permission]:
    """The permissions that these plugins declare."""
    return {
        (f"{rule.resource.plural}.{rule.resource.group}".rstrip("."), verb)
        for plugin in plugins
        if isinstance(extension := plugin(), RBACExtension)
        for rule in extension.declare_rbac_rules()
        for verb in rule.verbs
    }


def test_permissions_of_all_built_in_plugins_are_granted(rendered: Rendering) -> None:
    assert declared(*PLUGINS) - {*rights_in(cluster_role(rendered()))} == set()


@pytest.mark.parametrize("name", [plugin.name for plugin in PLUGINS if plugin.name != "JobSet"])
def test_permissions_of_a_disabled_plugin_are_not_granted(rendered: Rendering, name: str) -> None:
    off: Values = {"config": {"plugins": {"disabled": [name]}}, "runtimes": {"enabled": False}}
    role = cluster_role(rendered(off))
    others = declared(*(plugin for plugin in PLUGINS if plugin.name != name))
    [disabled] = [plugin for plugin in PLUGINS if plugin.name == name]
    assert others - {*rights_in(role)} == set()
    assert (declared(disabled) - others) & {*rights_in(role)} == set()


def test_without_mpi_no_secret_is_read(rendered: Rendering) -> None:
    objects = rendered(WITHOUT_MPI)
    role = cluster_role(objects)
    assert not verbs(role, "secrets")
    assert not verbs(role, "configmaps")
    [secrets] = [
        rule for rule in named(objects, "Role", MANAGER)["rules"] if "secrets" in rule["resources"]
    ]
    assert secrets["resourceNames"] == ["kubeflow-trainer-webhook-cert"]


def test_without_gangs_no_pod_groups_are_read(rendered: Rendering) -> None:
    role = cluster_role(rendered(WITHOUT_GANGS))
    of_gangs = {*GANGS, "limitranges", "runtimeclasses.node.k8s.io"}
    for resource in (*of_gangs, "priorityclasses.scheduling.k8s.io"):
        assert not verbs(role, resource), resource
    only = cluster_role(rendered({"config": {"plugins": {"disabled": ["Volcano"]}}}))
    assert verbs(only, "podgroups.scheduling.x-k8s.io")
    assert verbs(only, "limitranges")
    assert not verbs(only, "podgroups.scheduling.volcano.sh")
    assert not verbs(only, "priorityclasses.scheduling.k8s.io")


def test_namespaces_limit_the_permissions_to_them(rendered: Rendering) -> None:
    everywhere = set(rights_in(cluster_role(rendered())))
    objects = rendered({"watchNamespaces": TEAMS})
    cluster = set(rights_in(cluster_role(objects)))
    namespaced = everywhere - cluster - {("clustertrainingruntimes.trainer.kubeflow.org", "delete")}
    assert {resource for resource, _ in cluster} == {
        "clustertrainingruntimes.trainer.kubeflow.org",
        "runtimeclasses.node.k8s.io",
        "priorityclasses.scheduling.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "tokenreviews.authentication.k8s.io",
        "subjectaccessreviews.authorization.k8s.io",
    }
    for team in TEAMS:
        role = named(objects, "Role", "kubeflow-trainer-workloads", team)
        assert set(rights_in(role)) == namespaced
        binding = named(objects, "RoleBinding", "kubeflow-trainer-workloads", team)
        [subject] = binding["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": MANAGER, "namespace": NAMESPACE}
    # It only removes finalizers that were left on what others may use, and applies nothing.
    idle = rendered({"watchNamespaces": TEAMS, "runtimes": {"enabled": False}})
    remaining = verbs(cluster_role(idle), "clustertrainingruntimes.trainer.kubeflow.org")
    assert remaining == {"get", *READ, "patch"}
    # Nor does it delete what others may use.
    runtimes = verbs(cluster_role(objects), "clustertrainingruntimes.trainer.kubeflow.org")
    assert runtimes == {"get", *READ, *WRITE}


def test_manager_role_has_the_declared_permissions(rendered: Rendering) -> None:
    extra = {"apiGroups": ["acme.example"], "resources": ["runs"], "verbs": ["create", "patch"]}
    values: Values = {"rbac": {"extraRules": [extra], "ownerReferencesPermissionEnforcement": True}}
    role = cluster_role(rendered(values))
    assert verbs(role, "runs.acme.example") == {"create", "patch"}
    assert verbs(role, "trainjobs/finalizers.trainer.kubeflow.org") == {"update"}


def test_cache_initializer_may_not_delete_anything(rendered: Rendering) -> None:
    objects = rendered({"runtimes": {"torchDistributedWithCache": {"enabled": True}}})
    role = cluster_role(objects, "kubeflow-trainer-cache-initializer")
    assert verbs(role, "serviceaccounts") == {"create", "get"}
    assert "delete" not in {verb for _, verb in rights_in(role)}


def test_rbac_objects_can_be_excluded(rendered: Rendering) -> None:
    objects = rendered({"rbac": {"create": False}, "crds": {"install": True, "keep": False}})
    remaining = {
        each["metadata"]["name"]
        for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        for each in of_kind(objects, kind)
    }
    assert remaining == {  # these are for people
        "kubeflow-trainer-view",
        "kubeflow-trainer-edit",
        "kubeflow-trainer-admin",
        "kubeflow-trainer-view-cluster-runtimes",
        "kubeflow-trainer-public",
    }


def test_existing_service_account_is_used(rendered: Rendering) -> None:
    objects = rendered({"serviceAccount": {"create": False, "name": "theirs"}})
    assert [each for each in of_kind(objects, "ServiceAccount") if not is_hook(each)] == []
    pod = named(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "theirs"
    [subject] = named(objects, "ClusterRoleBinding", MANAGER)["subjects"]
    assert subject["name"] == "theirs"


def test_metrics_reader_role(rendered: Rendering) -> None:
    readers = [
        {"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"},
        {"kind": "User", "name": "system:somebody"},
    ]
    objects = rendered({"metrics": {"readers": readers}})
    role = cluster_role(objects, "kubeflow-trainer-metrics-reader")
    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    binding = named(objects, "ClusterRoleBinding", "kubeflow-trainer-metrics-reader")
    assert binding["subjects"] == [
        readers[0],
        {**readers[1], "apiGroup": "rbac.authorization.k8s.io"},
    ]


USERS = ("view", "edit", "admin")
MAY = {
    "view": {"trainjobs": set[str](), "trainingruntimes": set[str]()},
    "edit": {"trainjobs": {"create", "update", "patch", "delete", "deletecollection"}},
    "admin": {"trainingruntimes": {"create", "update", "patch", "delete", "deletecollection"}},
}


def test_user_facing_roles_are_aggregated(rendered: Rendering) -> None:
    objects = rendered()
    expected: dict[str, set[str]] = {}
    for name in USERS:
        expected |= MAY[name]
        role = cluster_role(objects, f"kubeflow-trainer-{name}")
        labels = role["metadata"]["labels"]
        assert labels[f"rbac.authorization.kubeflow.org/aggregate-to-kubeflow-{name}"] == "true"
        assert labels[f"rbac.authorization.k8s.io/aggregate-to-{name}"] == "true"
        for resource, more in expected.items():
            found = verbs(role, f"{resource}.trainer.kubeflow.org")
            assert found == {"get", *READ, *more}
        assert verbs(role, "pods/log") == {"get", *READ}
        assert not verbs(role, "clustertrainingruntimes.trainer.kubeflow.org")
    [subject] = named(objects, "ClusterRoleBinding", "kubeflow-trainer-view-cluster-runtimes")[
        "subjects"
    ]
    assert subject["name"] == "system:authenticated"


def test_user_facing_roles_can_be_disabled(rendered: Rendering) -> None:
    off = {"aggregateToDefault": False, "clusterRuntimesForAll": False}
    objects = rendered({"userRoles": off})
    for name in USERS:
        labels = cluster_role(objects, f"kubeflow-trainer-{name}")["metadata"]["labels"]
        assert not [key for key in labels if key.startswith("rbac.authorization.k8s.io/")]
    bound = {each["metadata"]["name"] for each in of_kind(objects, "ClusterRoleBinding")}
    assert "kubeflow-trainer-view-cluster-runtimes" not in bound


def test_authenticated_users_can_read_only_the_version_config_map(rendered: Rendering) -> None:
    objects = rendered()
    role = named(objects, "Role", "kubeflow-trainer-public")
    [rule] = role["rules"]
    assert rule["resourceNames"] == ["kubeflow-trainer-public"]
    [subject] = named(objects, "RoleBinding", "kubeflow-trainer-public")["subjects"]
    assert subject["name"] == "system:authenticated"


@pytest.mark.parametrize("plugin", [each.name for each in PLUGINS])
def test_every_plugin_can_be_disabled(rendered: Rendering, plugin: str) -> None:
    without_plugin = {"config": {"plugins": {"disabled": [plugin]}}, "runtimes": {"enabled": False}}
    assert rendered(without_plugin)


@pytest.mark.parametrize("watched", [[], ["team-a"]], ids=["everywhere", "in-a-namespace"])
def test_rules_for_plugins_are_where_they_are_needed(
    rendered: Rendering, watched: list[str]
) -> None:
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    rules = {"extraRules": [nodes], "extraNamespacedRules": [pods]}
    objects = rendered({"watchNamespaces": watched, "rbac": rules})
    role = cluster_role(objects)
    assert verbs(role, "nodes") == {"list"}
    assert bool(verbs(role, "pods")) is not bool(watched)
    for namespace in watched:
        workloads = named(objects, "Role", "kubeflow-trainer-workloads", namespace)
        assert pods in workloads["rules"]
