"""Values that the API accepts and that clients of other releases cannot decode."""

from kftrainer.api.configuration import Admission
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import Findings, invalid, shown
from kftrainer.runtime.info import NO_TRAINER
from kftrainer.runtime.rule_names import Rule

PROCESSES = "spec.trainer.numProcPerNode"
CLIENTS = "clients of Kubeflow Trainer 2.2 and later (Kueue 0.17, the SDK)"
INSTEAD = "a number, or leave it out and set it in the runtime's mlPolicy.torch"


def string_processes(old: TrainJob | None, new: TrainJob, admission: Admission) -> Findings:
    """Warn about a string in numProcPerNode, or reject it if the configuration says so.

    Release 2.1 accepts a string. Later clients decode an integer, and one TrainJob that they
    cannot decode makes them fail to list all others: the SDK in its namespace, Kueue everywhere.
    """
    value = (new.spec.trainer or NO_TRAINER).num_proc_per_node
    if not isinstance(value, str):
        return Findings()
    if admission.string_num_proc_per_node == "Reject":
        detail = f"must be an integer: {CLIENTS} cannot decode a string: write {INSTEAD}"
        return Findings([invalid(PROCESSES, value, detail, rule=Rule.PROCESSES_NOT_INTEGER)])
    if old is not None and (old.spec.trainer or NO_TRAINER).num_proc_per_node == value:
        return Findings()
    warning = (
        f"{PROCESSES}: {shown(value)} is a string, which {CLIENTS} cannot decode: they fail to "
        f"list TrainJobs. Write {INSTEAD}"
    )
    return Findings(warnings=[warning])
