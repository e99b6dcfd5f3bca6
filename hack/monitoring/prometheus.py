"""Runs a Prometheus that scrapes managers as configured by the chart."""

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object, UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.waiting import until

READY_WITHIN = 60.0
KNOWN_WITHIN = 30.0
RBAC = "rbac.authorization.k8s.io"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """A target that is scraped over HTTPS without verification of its certificate."""

    job: str
    address: str
    token: Path | None = None
    labels: Labels = field(default_factory=dict)
    only: str = ".*"  # names of metrics
    every: str = "1s"


@dataclass(frozen=True, slots=True)
class Curve:
    """A series: times, in seconds since 1970, and values."""

    labels: Labels
    points: Sequence[tuple[float, float]]


class Prometheus:
    """A running Prometheus, created by `scraping`; usable from any event loop."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def query(self, expr: str) -> list[Curve]:
        """Return the current series of an expression, each with one point."""
        found = await self._query("query", query=expr)
        return [_curve(each["metric"], [each["value"]]) for each in found["result"]]

    async def query_range(self, expr: str, start: float, end: float, step: float) -> list[Curve]:
        """Return the series of an expression over a time range."""
        times = {"start": str(start), "end": str(end), "step": str(step)}
        found = await self._query("query_range", query=expr, **times)
        return [_curve(each["metric"], each["values"]) for each in found["result"]]

    async def selectors(self, expr: str) -> list[str]:
        """Return the selectors of an expression."""
        return sorted(set(_selectors(await self._query("parse_query", query=expr))))

    async def rules(self) -> list[Object]:
        """Return the rules with their last evaluation."""
        groups = (await self._query("rules"))["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def scrape_error(self, job: str) -> str:
        """Return the errors of scraping the targets of this job."""
        targets = (await self._query("targets"))["activeTargets"]
        own = (each for each in targets if each["labels"]["job"] == job)
        return " ".join(each["lastError"] for each in own).strip()

    async def _query(self, what: str, **query: str) -> Any:
        async with ApiClient(self._url, None) as api:
            return (await api.request("GET", f"/api/v1/{what}", query=query))["data"]


@asynccontextmanager
async def scraping(
    program: Path, folder: Path, targets: Sequence[Target], groups: Sequence[Object] = ()
) -> AsyncIterator[Prometheus]:
    """Run a Prometheus with these targets and rule groups, in this folder."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    address = f"{LOOPBACK}:{ports.reserve()}"
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(groups)}))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(_configuration(targets)))
    argv = (
        *(program, f"--config.file={folder / 'prometheus.yaml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"),
    )
    process = ManagedProcess("prometheus", argv, folder / "prometheus.log", folder)
    process.start()
    try:
        await _ready(process, f"http://{address}")
        yield Prometheus(f"http://{address}")
    finally:
        process.kill()
        ports.release_all()


async def _ready(process: ManagedProcess, url: str) -> None:
    async with ApiClient(url, None) as api:

        async def ready() -> bool:
            process.check()
            try:
                await api.fetch("GET", "/-/ready")
            except (ApiError, UnreachableError):
                return False
            return True

        await until(ready, within=READY_WITHIN, what="Prometheus being ready")


def _configuration(targets: Sequence[Target]) -> Object:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [_scrape(job, targets) for job in dict.fromkeys(t.job for t in targets)],
    }


def _scrape(job: str, targets: Sequence[Target]) -> Object:
    own = [each for each in targets if each.job == job]
    token = own[0].token
    keep = {"source_labels": ["__name__"], "regex": own[0].only, "action": "keep"}
    return {
        "job_name": job,
        "scheme": "https",
        "honor_labels": True,
        "scrape_interval": own[0].every,
        "tls_config": {"insecure_skip_verify": True},
        **({"authorization": {"credentials_file": str(token)}} if token else {}),
        "static_configs": [
            {"targets": [each.address], "labels": dict(each.labels)} for each in own
        ],
        "metric_relabel_configs": [keep],
    }


def _curve(labels: Labels, points: Sequence[tuple[float, str]]) -> Curve:
    return Curve(labels, [(at, float(value)) for at, value in points])


def is_number(curve: Curve) -> bool:
    """Return whether its last value is a number; a division by zero is not."""
    return bool(curve.points) and not math.isnan(curve.points[-1][1])


def _selectors(node: Any) -> Iterator[str]:
    """Yield all selectors in a parsed expression."""
    if isinstance(node, list):
        for each in node:
            yield from _selectors(each)
    elif isinstance(node, dict):
        if "matchers" in node:
            labels = (each for each in node["matchers"] if each["name"] != "__name__")
            matchers = sorted(f"{m['name']}{m['type']}{_quoted(m['value'])}" for m in labels)
            yield f"{node['name']}{{{','.join(matchers)}}}"
        for value in node.values():
            yield from _selectors(value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def reader_token(api: ApiClient, namespace: str, file: Path) -> Path:
    """Create a ServiceAccount that may only read metrics; return the file of its token."""
    name = f"metrics-reader-{namespace}"
    account = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    metadata = {"name": name, "namespace": namespace}
    await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    role = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    await api.apply({**role, "kind": "ClusterRole", "rules": rules})
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    await api.apply(
        {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [account]}
    )
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{name}",
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        },
    }

    async def known() -> bool:
        return bool((await api.create(question))["status"]["allowed"])

    await until(known, within=KNOWN_WITHIN, what="the API server knowing who may read metrics")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    token: str = (await api.request("POST", path, body=request))["status"]["token"]
    file.write_text(token)
    file.chmod(0o600)
    return file
