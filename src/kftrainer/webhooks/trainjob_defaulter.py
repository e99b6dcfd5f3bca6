"""Mutating admission of TrainJobs: they are stored in canonical form."""

from collections.abc import Collection

from kftrainer.kube.objects.json_patch import json_patch
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.webhook.admission import (
    ALLOWED,
    AdmissionRequest,
    AdmissionResponse,
)
from kftrainer.runtime.canonical_form import canonical_train_job
from kftrainer.webhooks.trainjob import needs_no_validation


class TrainJobDefaulter:
    """Defaulter for TrainJobs: returns a patch to their canonical form.

    It allows every request: what is invalid or too large is not changed, and is rejected by the
    schema or by the validator afterwards.
    """

    def __init__(self, *, clock: Clock, namespaces: Collection[str] = ()) -> None:
        self._clock = clock
        self._namespaces = frozenset(namespaces)  # all namespaces if empty

    async def __call__(self, request: AdmissionRequest) -> AdmissionResponse:
        """Return the changes of a TrainJob."""
        new, old = request.object, request.old_object
        if new is None or (self._namespaces and request.namespace not in self._namespaces):
            return ALLOWED
        if needs_no_validation(old, new):
            return ALLOWED
        form = canonical_train_job(old, new, self._clock.now())
        if form is new:
            return ALLOWED
        return AdmissionResponse(allowed=True, patch=json_patch(new, form))
