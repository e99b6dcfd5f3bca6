"""The files /etc/hosts, /etc/hostname and /etc/resolv.conf of pods. Pure."""

from collections.abc import Iterable

from kftrainer.devcluster.nodes.kubelet.pods.states import Object

DNS_SERVER = "10.0.0.10"
CLUSTER_DOMAIN = "cluster.local"
LONGEST_HOSTNAME = 63
LOCAL_NAMES = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def hostname(pod: Object) -> str:
    """Return the hostname that the pod's processes see."""
    short = _short_hostname(pod)
    full = full_hostname(pod)
    return full if pod["spec"].get("setHostnameAsFQDN") and full else short


def _short_hostname(pod: Object) -> str:
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name[:LONGEST_HOSTNAME].rstrip("-.")


def full_hostname(pod: Object) -> str:
    """Return the pod's name in the domain of its headless Service; empty without subdomain."""
    subdomain, namespace = pod["spec"].get("subdomain"), pod["metadata"]["namespace"]
    if not subdomain:
        return ""
    return f"{_short_hostname(pod)}.{subdomain}.{namespace}.svc.{CLUSTER_DOMAIN}"


def hosts_file(pod: Object, ip: str) -> str:
    """Return /etc/hosts as the kubelet writes it."""
    names = "\t".join(filter(None, (full_hostname(pod), _short_hostname(pod))))
    text = f"# Kubernetes-managed hosts file.\n{LOCAL_NAMES}{ip}\t{names}\n"
    aliases = pod["spec"].get("hostAliases") or ()
    if aliases:
        lines = ("\t".join((each["ip"], *(each.get("hostnames") or ()))) for each in aliases)
        text += "\n# Entries added by HostAliases.\n" + "".join(f"{line}\n" for line in lines)
    return text


def resolv_conf(pod: Object) -> str:
    """Return /etc/resolv.conf.

    All policies except None use the DNS server of the process nodes, as there is no other network.
    """
    policy = pod["spec"].get("dnsPolicy", "ClusterFirst")
    uses_cluster = policy == "ClusterFirstWithHostNet" or (
        policy == "ClusterFirst" and not pod["spec"].get("hostNetwork")
    )
    namespace = pod["metadata"]["namespace"]
    services = f"svc.{CLUSTER_DOMAIN}"
    search = [f"{namespace}.{services}", services, CLUSTER_DOMAIN] if uses_cluster else []
    servers = [] if policy == "None" else [DNS_SERVER]
    options = {"ndots": "5"} if uses_cluster else {}

    config = pod["spec"].get("dnsConfig") or {}
    servers += config.get("nameservers") or ()
    search += config.get("searches") or ()
    options |= {each["name"]: each.get("value") or "" for each in config.get("options") or ()}
    shown = (f"{name}:{value}" if value else name for name, value in options.items())
    return "".join(
        (
            _line("search", dict.fromkeys(search)),
            *(_line("nameserver", [server]) for server in dict.fromkeys(servers)),
            _line("options", shown),
        )
    )


def _line(keyword: str, values: Iterable[str]) -> str:
    text = " ".join(values)
    return f"{keyword} {text}\n" if text else ""
