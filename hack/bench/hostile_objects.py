"""TrainJobs and runtimes that cost as much as possible, built from a few numbers."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any

from kftrainer.api import limits
from kftrainer.api.names import API_VERSION, CLUSTER_TRAINING_RUNTIME, LABEL_ANCESTOR_STEP
from kftrainer.api.resources import JOB_SETS
from kftrainer.kube.objects.resource import Manifest

Object = dict[str, Any]

TORCHTUNE = ["tune", "run"]
TURN = 10_000_000
ACTIVE, FINISHED = 2, 3
CONDITION_FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "JobsFailed",
    "message": "",
    "lastTransitionTime": "2025-01-01T00:00:00Z",
}


@dataclass(frozen=True)
class Attack:
    """How many of everything; choices are numbers, too, so that a search can change them."""

    # The runtime.
    jobs: int = 1
    containers: int = 1
    init_containers: int = 0
    resources: int = 0  # of each container
    env: int = 0
    volumes: int = 0
    mounts: int = 0
    ports: int = 0
    labels: int = 0  # of the JobSet and of the pods
    awaited: int = 0  # jobs that each waits for
    claims: int = 0
    rules: int = 0  # of the failure policy
    long_names: int = 0  # characters that names in the runtime have more
    # The TrainJob.
    overrides: int = 0
    targets: int = 1
    override_volumes: int = 0
    override_env: int = 0
    override_containers: int = 0
    override_init_containers: int = 0
    override_mounts: int = 1  # of each container
    override_labels: int = 0
    override_annotations: int = 0
    override_tolerations: int = 0
    override_gates: int = 0
    override_selectors: int = 0
    override_affinities: int = 0  # terms of one
    initializer_env: int = 0
    trainer_env: int = 0
    trainer_resources: int = 0
    args: int = 0
    job_labels: int = 0
    job_annotations: int = 0
    status_rows: int = 0  # which controllers write, and the limits of the rest do not count
    long_texts: int = 0  # characters that names in the TrainJob have more
    nodes: int = 1
    padding: int = 0  # characters in one argument
    # Choices.
    sidecars: int = 0  # every how many init containers; none if 0
    quantities: int = 0
    order: int = 0  # 1: InOrder, 2: dependsOn in a chain
    gang: int = 0  # 1: coscheduling, 2: Volcano
    policy: int = 0  # 1: torch, 2: MPI, 3: torchtune
    volume_kind: int = 0
    env_kind: int = 0
    # 1: only the image changes, 2: every value, 3: no value of the overrides, but how they are
    # written, 4: only metadata, 5: the old object had other types
    update: int = 0
    # 1: targets, 2: containers that are not there, 3: bad labels, 4: bad env, 5: entries without
    # names, 6: other types, 7: a name that is too long for JobSet
    unknown: int = 0
    names: int = 0  # in each override 1: other ones, 2: in another order, 3: some of them twice
    sources: int = 0  # 1: other kinds of env and volumes in every second override
    directives: int = 0  # 1: $setElementOrder, 2: $patch: delete, 3: $retainKeys, 4: null
    legacy: int = 0  # 1: podSpecOverrides
    patched: int = 0  # 1: runtimePatches instead of overrides
    state: int = 0  # 1: there is a JobSet, 2: one with active jobs, 3: the TrainJob has finished


CHOICES = {
    "quantities": 7,
    "order": 3,
    "gang": 3,
    "policy": 4,
    "volume_kind": 7,
    "env_kind": 5,
    "update": 6,
    "unknown": 8,
    "sidecars": 4,
    "names": 4,
    "sources": 2,
    "directives": 5,
    "legacy": 2,
    "patched": 2,
    "state": 4,
}
_NAMES = tuple(field.name for field in fields(Attack))
IN_RUNTIME = _NAMES[: _NAMES.index("overrides")]
IN_JOB = (*_NAMES[_NAMES.index("overrides") : _NAMES.index("nodes")], "padding")


@dataclass(frozen=True)
class Objects:
    """What is sent: a runtime, and a TrainJob as it was, if it was, and as it is to be."""

    runtime: Manifest
    old_runtime: Manifest
    old: Manifest | None
    new: Manifest
    job_set: Manifest | None


def objects_of(attack: Attack, *, turn: int = 0) -> Objects:
    """Build the objects, whatever their sizes; in each turn with other numbers in them.

    What is remembered about the quantities of one turn is of no use in the next.
    """
    start = TURN * (turn % 8 + 1)
    builder = _ObjectBuilder(attack, start)
    new = builder.train_job()
    before = builder.runtime()
    before["spec"]["template"]["spec"]["suspend"] = True
    old = _old(attack, start) if attack.update else None
    return Objects(builder.runtime(), before, old, new, _job_set(attack))


def excess_in(objects: Objects) -> str | None:
    """Return the first limit that one of the objects exceeds: then it is not worked on."""
    checked = (objects.runtime, objects.old_runtime, objects.old, objects.new)
    errors = (limits.exceeded(each) for each in checked if each is not None)
    return next((str(error) for error in errors if error is not None), None)


def _old(attack: Attack, start: int) -> Object:
    """The TrainJob before the update."""
    start = 9 * TURN if attack.update == 2 else start  # noqa: PLR2004
    old = _ObjectBuilder(attack, start).train_job()
    if attack.update == 4:  # noqa: PLR2004
        old["metadata"]["labels"] = {"before": "x"}
        return old
    old["spec"]["suspend"] = True
    old["spec"].setdefault("trainer", {})["image"] = "before"
    for override in old["spec"].get("podTemplateOverrides", ()) if attack.update == 3 else ():  # noqa: PLR2004
        override["spec"] |= {"hostname": "", "tolerations": override["spec"].get("tolerations")}
        for volume in override["spec"].get("volumes") or ():
            volume["secret"] = None
    if attack.update == 5:  # noqa: PLR2004
        old["spec"]["trainer"]["env"] = [3 for _ in old["spec"]["trainer"]["env"]]
    return old


def _job_set(attack: Attack) -> Object | None:
    """A JobSet of the TrainJob, as far as rules read it."""
    if attack.state not in (1, ACTIVE):
        return None
    active = int(attack.state == ACTIVE)
    rows = [{"name": f"j{n}" if n else "node", "active": active} for n in range(attack.jobs)]
    owner = {"kind": "TrainJob", "name": "hostile", "uid": "1", "controller": True}
    return {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {
            "name": "hostile",
            "namespace": "tenant",
            "ownerReferences": [owner],
            **_version(),
        },
        "spec": {"suspend": True, "replicatedJobs": []},
        "status": {"replicatedJobsStatus": rows},
    }


def _version() -> Object:
    """Metadata as the API server adds it."""
    return {"uid": "1", "resourceVersion": "1", "generation": 1}


def edited(manifest: Manifest) -> Manifest:
    """Return the object after an edit that changes nothing which takes time to validate."""
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "resourceVersion": "2", "generation": 2}}


def within_limits(attack: Attack, names: Collection[str] = ()) -> Attack:
    """Return the attack with as much as the limits allow of its runtime and of its TrainJob.

    If names are given, their numbers are made smaller first, and all others only if needed.
    """
    attack = _capped(attack)
    for all_names, make in ((IN_RUNTIME, _runtimes), (IN_JOB, _train_jobs)):
        some = [name for name in all_names if name in names]
        attack = _largest(attack, some, make)
        attack = _largest(attack, all_names, make)
    return attack


def _runtimes(attack: Attack) -> Sequence[Manifest]:
    """The runtime after an update, and before."""
    objects = objects_of(replace(attack, overrides=0))
    return [objects.runtime, objects.old_runtime]


def _train_jobs(attack: Attack) -> Sequence[Manifest]:
    """The TrainJob after an update, and before."""
    return [
        _ObjectBuilder(attack, TURN).train_job(),
        *([_old(attack, TURN)] if attack.update else ()),
    ]


def _capped(attack: Attack) -> Attack:
    """Keep the numbers below the limits of single lists."""
    most = {
        "jobs": limits.REPLICATED_JOBS,
        "containers": limits.CONTAINERS,
        "init_containers": limits.CONTAINERS,
        "resources": limits.FEW,
        "env": limits.ENV_VARS,
        "volumes": limits.VOLUMES,
        "mounts": limits.VOLUMES,
        "ports": limits.MANY,
        "labels": limits.MANY,
        "awaited": limits.REPLICATED_JOBS,
        "claims": 50,
        "rules": 20,
        "overrides": limits.OVERRIDES,
        "targets": limits.OVERRIDES,
        "override_volumes": limits.VOLUMES,
        "override_env": limits.ENV_VARS,
        "override_containers": limits.CONTAINERS,
        "override_init_containers": limits.CONTAINERS,
        "override_mounts": limits.VOLUMES,
        "override_labels": limits.MANY,
        "override_annotations": limits.MANY,
        "override_tolerations": limits.MANY,
        "override_gates": limits.FEW,
        "override_selectors": limits.FEW,
        "override_affinities": limits.MANY,
        "initializer_env": limits.ENV_VARS,
        "trainer_env": limits.ENV_VARS,
        "trainer_resources": limits.FEW,
        "args": limits.WORDS,
        "job_labels": limits.MANY,
        "job_annotations": limits.MANY,
        "status_rows": limits.STATUS_ROWS,
        "long_names": limits.OBJECT_BYTES,
        "long_texts": limits.OBJECT_BYTES,
        "nodes": 2**31 - 1,
        "padding": limits.TEXT_LENGTH,
    }
    return replace(
        attack, **{name: min(getattr(attack, name), largest) for name, largest in most.items()}
    )


def _largest(
    attack: Attack, names: Sequence[str], make: Callable[[Attack], Sequence[Manifest]]
) -> Attack:
    """Scale these numbers down until the objects are within the limits."""

    def scaled(share: float) -> Attack:
        smaller = {
            name: max(int(getattr(attack, name) * share), min(getattr(attack, name), 1))
            for name in names
        }
        return replace(attack, **smaller)

    def fits(share: float) -> bool:
        return all(limits.exceeded(each) is None for each in make(scaled(share)))

    if not names or fits(1.0):
        return attack
    low, high = 0.0, 1.0
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return scaled(low)


def _patch_of(index: int, override: Object) -> Object:
    """Return a runtime patch that does what the override does."""
    targets, metadata = override["targetJobs"], override.get("metadata")
    rest = {key: each for key, each in override.items() if key not in ("targetJobs", "metadata")}
    pods = {"metadata": metadata or {}, "spec": override.get("spec", rest)}
    jobs = [
        {"name": each["name"] if isinstance(each, dict) else each, "template": _pods_in_job(pods)}
        for each in targets
    ]
    template = {"metadata": metadata or {}, "spec": {"replicatedJobs": jobs}}
    return {"manager": f"acme.io/{index}", "trainingRuntimeSpec": {"template": template}}


def _pods_in_job(pods: Object) -> Object:
    return {"metadata": pods["metadata"], "spec": {"template": pods}}


class _ObjectBuilder:
    """Builds one set of objects: numbers in it are all different."""

    def __init__(self, attack: Attack, start: int) -> None:
        self._attack = attack
        self._numbers = count(start)
        self._alternate = 0

    def runtime(self) -> Object:
        attack = self._attack
        jobs = [self._job(index) for index in range(attack.jobs)]
        template: Object = {"replicatedJobs": jobs}
        if attack.order == 1:
            template["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
        if attack.claims:
            template["volumeClaimPolicies"] = [{"templates": [*self._claims()]}]
        if attack.rules:
            names = [job["name"] for job in jobs]
            template["failurePolicy"] = {"rules": [*self._rules(names)]}
        spec: Object = {
            "mlPolicy": {"numNodes": 1},
            "template": {
                "metadata": {"labels": self._labels(attack.labels, attack.long_names)},
                "spec": template,
            },
        }
        if attack.policy:
            spec["mlPolicy"]["mpi" if attack.policy == 2 else "torch"] = {}  # noqa: PLR2004
        if attack.gang:
            spec["podGroupPolicy"] = {("coscheduling", "volcano")[attack.gang - 1]: {}}
        return {
            "apiVersion": API_VERSION,
            "kind": CLUSTER_TRAINING_RUNTIME,
            "metadata": {
                "name": "hostile",
                "labels": {"trainer.kubeflow.org/framework": "x"},
                **_version(),
            },
            "spec": spec,
        }

    def train_job(self) -> Object:
        attack = self._attack
        trainer: Object = {
            "numNodes": attack.nodes,
            "command": TORCHTUNE if attack.policy == 3 else ["train"],  # noqa: PLR2004
            "args": [*(f"lr={n}" for n in range(attack.args)), "x" * attack.padding],
            "env": self._env(attack.trainer_env, reserved=attack.unknown == 4),  # noqa: PLR2004
            "resourcesPerNode": self._resources(attack.trainer_resources),
        }
        field = "podSpecOverrides" if attack.legacy else "podTemplateOverrides"
        spec: Object = {
            "runtimeRef": {
                "name": "hostile",
                "apiGroup": "trainer.kubeflow.org",
                "kind": CLUSTER_TRAINING_RUNTIME,
            },
            "suspend": bool(attack.update),
            "managedBy": "trainer.kubeflow.org/trainjob-controller",
            "trainer": trainer,
            "labels": self._labels(attack.job_labels, attack.long_texts),
            "annotations": self._labels(attack.job_annotations, attack.long_texts),
            field: [self._override(index) for index in range(attack.overrides)],
        }
        if attack.patched:
            overrides = spec.pop(field)
            spec["runtimePatches"] = [_patch_of(*each) for each in enumerate(overrides)]
        if attack.initializer_env:
            env = {"env": self._env(attack.initializer_env)}
            spec["initializer"] = {"dataset": {"storageUri": "hf://x", **env}}
        name = "hostile" if attack.unknown != 7 else "h" * 63  # noqa: PLR2004
        return {
            "apiVersion": API_VERSION,
            "kind": "TrainJob",
            "metadata": {"name": name, "namespace": "tenant", "uid": "1"},
            "spec": spec,
            **self._status(),
        }

    def _status(self) -> Object:
        attack = self._attack
        counts = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), 0)
        rows = [{"name": f"j{n}", **counts} for n in range(attack.status_rows)]
        conditions = [CONDITION_FAILED] if attack.state == FINISHED else []
        status = {"jobsStatus": rows, "conditions": conditions}
        return {"status": status} if rows or conditions else {}

    def _job(self, index: int) -> Object:
        attack = self._attack
        pod = {
            "containers": [
                self._container(f"c{n}{'x' * attack.long_names if n > 1 else ''}")
                for n in range(attack.containers)
            ],
            "initContainers": [
                self._container(f"i{n}", sidecar=bool(attack.sidecars) and n % attack.sidecars == 0)
                for n in range(attack.init_containers)
            ],
            "volumes": self._volumes(attack.volumes),
        }
        job: Object = {
            "name": f"j{index}",
            "template": {
                "spec": {
                    "template": {"metadata": {"labels": self._labels(attack.labels)}, "spec": pod}
                }
            },
        }
        if index == 0:
            job["name"] = pod["containers"][0]["name"] = "node"
            job["template"]["metadata"] = {"labels": {LABEL_ANCESTOR_STEP: "trainer"}}
        if attack.order == 2 and index:  # noqa: PLR2004
            awaited = range(max(0, index - max(1, attack.awaited)), index)
            job["dependsOn"] = [
                {"name": f"j{n}" if n else "node", "status": "Complete" if n % 2 else "Ready"}
                for n in awaited
            ]
        return job

    def _container(self, name: str, *, sidecar: bool = False) -> Object:
        attack = self._attack
        container: Object = {
            "name": name,
            "image": "x",
            "env": self._env(attack.env),
            "ports": [{"containerPort": n} for n in range(1, attack.ports + 1)],
            "volumeMounts": [{"name": f"v{n}", "mountPath": f"/{n}"} for n in range(attack.mounts)],
            "resources": self._resources(attack.resources),
        }
        if sidecar:
            container["restartPolicy"] = "Always"
        return {key: value for key, value in container.items() if value}

    def _override(self, index: int) -> Object:
        attack = self._attack
        self._alternate = attack.sources and index % 2
        name = "other" if attack.unknown == 1 else "j"
        targets = [f"{name}{n}" if n else "node" for n in range(attack.targets)]
        spec: Object = {
            "volumes": self._mixed("volumes", self._volumes(attack.override_volumes), index),
            "containers": self._changed_containers("c", attack.override_containers, index),
            "initContainers": self._changed_containers("i", attack.override_init_containers, index),
            "tolerations": [
                {"key": str(next(self._numbers))} for _ in range(attack.override_tolerations)
            ],
            "schedulingGates": [{"name": f"g{n}"} for n in range(attack.override_gates)],
            "nodeSelector": {f"n{n}": "x" for n in range(attack.override_selectors)},
            "affinity": self._affinity(attack.override_affinities),
        }
        spec = {key: value for key, value in spec.items() if value}
        if attack.directives == 1 and "volumes" in spec:
            order = [{"name": each.get("name", "v0")} for each in spec["volumes"]]
            spec["$setElementOrder/volumes"] = order
        whole: Object = {"targetJobs": [{"name": each} for each in targets]}
        if attack.unknown == 6:  # noqa: PLR2004
            whole["targetJobs"] = [3] * attack.targets
        if attack.legacy:
            return {**whole, **spec}
        metadata = {
            "labels": self._labels(attack.override_labels, attack.long_texts),
            "annotations": self._labels(attack.override_annotations, attack.long_texts),
        }
        return {**whole, "metadata": metadata, "spec": spec}

    def _changed_containers(self, letter: str, number: int, index: int) -> list[Object]:
        attack = self._attack
        name = "nobody" if attack.unknown == 2 else letter  # noqa: PLR2004
        return [
            {
                "name": f"{name}{n}",
                "env": self._mixed("env", self._env(attack.override_env), index),
                "volumeMounts": [
                    {"name": "v0", "mountPath": f"/{n}/{next(self._numbers)}"}
                    for _ in range(attack.override_mounts)
                ],
            }
            for n in range(1, number + 1)
        ]

    def _mixed(self, field: str, entries: list[Object], index: int) -> list[Object]:
        """Change names, their order, and what is in entries of an override."""
        attack = self._attack
        if attack.unknown == 5 and entries:  # noqa: PLR2004
            entries[-1] = {"x": 1}
        match attack.names:
            case 1:
                entries = [{**each, "name": f"{each.get('name')}-{index}"} for each in entries]
            case 2 if index % 2:
                entries.reverse()
            case 3:
                entries = [*entries[:-1], *entries[:1]]
            case _:
                pass
        match attack.directives:
            case 2 if index % 2:
                return [{"name": each.get("name"), "$patch": "delete"} for each in entries]
            case 3:
                return [{**each, "$retainKeys": sorted(each)} for each in entries]
            case 4:
                return [{**each, "secret" if field == "volumes" else "x": None} for each in entries]
            case _:
                return entries

    def _affinity(self, terms: int) -> Object:
        if not terms:
            return {}
        expression = {"key": "x", "operator": "In", "values": ["x"]}
        preferred = [
            {"weight": 1, "preference": {"matchExpressions": [expression]}} for _ in range(terms)
        ]
        field = "preferredDuringSchedulingIgnoredDuringExecution"
        return {"nodeAffinity": {field: preferred}}

    def _labels(self, number: int, longer: int = 0) -> Object:
        bad = "-" * 70 if self._attack.unknown == 3 else "a"  # noqa: PLR2004
        return {f"{bad}{next(self._numbers)}{'x' * longer}": "x" for _ in range(number)}

    def _resources(self, number: int) -> Object:
        if not number:
            return {}
        halves = ("limits", "requests") if number > 1 else ("limits",)
        return {half: {f"r{n}": self._quantity() for n in range(number)} for half in halves}

    def _env(self, number: int, *, reserved: bool = False) -> list[Object]:
        prefix = "PET_NNODES" if reserved else "E" + "x" * self._attack.long_texts
        return [{"name": f"{prefix}{n or ''}", **self._variable()} for n in range(number)]

    def _variable(self) -> Object:
        match (self._attack.env_kind + self._alternate) % CHOICES["env_kind"]:
            case 0:
                return {"value": "x"}
            case 1:
                divisor = self._quantity()
                return {"valueFrom": {"resourceFieldRef": {"resource": "x", "divisor": divisor}}}
            case 2:
                return {"valueFrom": {"secretKeyRef": {"name": str(next(self._numbers))}}}
            case 3:
                return {"value": str(next(self._numbers))}
            case _:
                return {}

    def _volumes(self, number: int) -> list[Object]:
        kinds = ("emptyDir", "ephemeral", "downwardAPI", "configMap", "mixed", "bare", "projected")
        kind = kinds[(self._attack.volume_kind + self._alternate) % len(kinds)]
        return [{"name": f"v{n}", **self._volume(kind)} for n in range(number)]

    def _volume(self, kind: str) -> Object:
        number = next(self._numbers)
        if kind == "mixed":
            kind = ("emptyDir", "configMap")[number % 2]
        match kind:
            case "bare":
                return {}
            case "projected":
                source = {"configMap": {"name": str(number), "items": [{"key": "x", "path": "x"}]}}
                return {kind: {"sources": [source, source]}}
            case "emptyDir":
                return {kind: {"sizeLimit": self._quantity()}}
            case "ephemeral":
                amounts = {"requests": {"storage": self._quantity()}}
                return {kind: {"volumeClaimTemplate": {"spec": {"resources": amounts}}}}
            case "downwardAPI":
                divisor = {"resource": "x", "divisor": self._quantity()}
                return {kind: {"items": [{"path": "x", "resourceFieldRef": divisor}]}}
            case _:
                return {kind: {"name": str(number)}}

    def _quantity(self) -> str:
        number = next(self._numbers)
        return (
            "1",
            f"{number}m",
            f"{number + 1}e15",
            f"{number + 1}e991",
            f"{number}.{'0' * 50}1Ki",
            f"-{number + 1}",
            f"many{number}",
        )[self._attack.quantities]

    def _claims(self) -> Iterator[Object]:
        for n in range(self._attack.claims):
            yield {"metadata": {"name": f"v{n}"}, "spec": {}}

    def _rules(self, names: list[str]) -> Iterator[Object]:
        for n in range(self._attack.rules):
            yield {"name": f"rule{n}", "action": "FailJobSet", "targetReplicatedJobs": names}
