"""The replicated jobs of a runtime that may have mistakes in it, for those who look for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.template import JOBS_PATH, ancestor


@dataclass(frozen=True, slots=True)
class RuntimeJob:
    """A replicated job as it stands in the runtime, and where."""

    index: int
    name: str
    step: str | None  # as the label says; nobody has checked that it is one of the steps
    body: Mapping[str, Any]
    job_spec: Mapping[str, Any]
    pod: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Where it is in the runtime."""
        return f"{JOBS_PATH}[{self.index}]"

    @property
    def pod_path(self) -> str:
        """Where the spec of its pods is."""
        return f"{self.path}.template.spec.template.spec"

    @property
    def containers(self) -> Sequence[str]:
        """The names of its containers, init containers not among them."""
        containers = self.pod.get("containers")
        listed = containers if isinstance(containers, list) else ()
        found = (each.get("name") for each in listed if isinstance(each, Mapping))
        return [name for name in found if isinstance(name, str)]


def whole_jobs(runtime: AnyRuntime) -> list[RuntimeJob]:
    """The jobs that have a name and pods: `runtime_errors` tells what others lack."""
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
