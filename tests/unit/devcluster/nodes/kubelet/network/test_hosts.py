from kftrainer.devcluster.nodes.kubelet.network.hosts import (
    full_hostname,
    hostname,
    hosts_file,
    resolv_conf,
)
from tests.support.node_pods import pod

IN_CLUSTER = """\
search team.svc.cluster.local svc.cluster.local cluster.local
nameserver 10.0.0.10
options ndots:5
"""


def test_hostname_is_the_name_of_the_pod_unless_it_is_set() -> None:
    names = [hostname(each) for each in (pod(), pod(hostname="node-0"))]
    assert names == ["trainer", "node-0"]


def test_hostname_can_be_fully_qualified() -> None:
    found = pod(hostname="node-0", subdomain="net", setHostnameAsFQDN=True)
    assert hostname(found) == full_hostname(found) == "node-0.net.team.svc.cluster.local"


def test_long_hostname_is_truncated_without_a_trailing_dash() -> None:
    found = pod()
    found["metadata"]["name"] = "a" * 62 + "-b"
    assert hostname(found) == "a" * 62


def test_hosts_file_has_the_pod_and_its_aliases() -> None:
    aliases = [{"ip": "1.2.3.4", "hostnames": ["x", "y"]}]
    found = hosts_file(pod(hostname="n", subdomain="net", hostAliases=aliases), "10.244.0.2")
    assert found.splitlines()[-4:] == [
        "10.244.0.2\tn.net.team.svc.cluster.local\tn",
        "",
        "# Entries added by HostAliases.",
        "1.2.3.4\tx\ty",
    ]


def test_resolver_searches_the_namespace_first() -> None:
    assert resolv_conf(pod()) == IN_CLUSTER


def test_resolver_of_other_policies() -> None:
    config = {"nameservers": ["1.1.1.1"], "searches": ["a.b"], "options": [{"name": "edns0"}]}
    none = pod(dnsPolicy="None", dnsConfig=config)
    assert resolv_conf(none) == "search a.b\nnameserver 1.1.1.1\noptions edns0\n"
    assert resolv_conf(pod(dnsPolicy="Default")) == "nameserver 10.0.0.10\n"
    assert resolv_conf(pod(dnsPolicy="ClusterFirstWithHostNet", hostNetwork=True)) == IN_CLUSTER
