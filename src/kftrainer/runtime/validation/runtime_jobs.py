"""Read access to the replicated jobs of a runtime that may be invalid, for validation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.template import JOBS_PATH, ancestor


@dataclass(frozen=True, slots=True)
class RuntimeJob:
    """A replicated job of a runtime, with its position."""

    index: int
    name: str
    step: str | None  # value of the step label, not validated
    body: Mapping[str, Any]
    job_spec: Mapping[str, Any]
    pod: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Path of the job in the runtime."""
        return f"{JOBS_PATH}[{self.index}]"

    @property
    def pod_path(self) -> str:
        """Path of the pod spec in the runtime."""
        return f"{self.path}.template.spec.template.spec"

    @property
    def containers(self) -> Sequence[str]:
        """Names of the containers, without init containers."""
        return self._names("containers")

    @property
    def init_containers(self) -> Sequence[str]:
        """Names of the init containers."""
        return self._names("initContainers")

    def _names(self, field: str) -> Sequence[str]:
        containers = self.pod.get(field)
        listed = containers if isinstance(containers, list) else ()
        found = (each.get("name") for each in listed if isinstance(each, Mapping))
        return [name for name in found if isinstance(name, str)]


def whole_jobs(runtime: AnyRuntime) -> list[RuntimeJob]:
    """Return the jobs that have a name and a pod spec; `runtime_errors` reports the others."""
    template = runtime.spec.template if runtime.spec else None
    jobs = ((template and template.spec) or {}).get("replicatedJobs")
    return [*_whole(jobs if isinstance(jobs, list) else [])]


def _whole(jobs: list[Any]) -> Iterator[RuntimeJob]:
    for index, job in enumerate(jobs):
        match job:
            case {"name": str(name), "template": {"spec": {"template": {"spec": {}}}}} if name:
                template = job["template"]
                pod = template["spec"]["template"]["spec"]
                yield RuntimeJob(index, name, ancestor(job), job, template["spec"], pod)
