"""A controller-runtime for asyncio: caches, queues, controllers, leader election, webhooks.

It does not depend on TrainJobs. The names in `__all__` are its stable public API. They are all that
a controller needs, including the API client. Each name is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kftrainer.kube.client.client import Client
    from kftrainer.kube.client.credentials import load_connection
    from kftrainer.kube.client.transport import HttpTransport
    from kftrainer.kube.objects.resource import ObjectKey, Resource, unstructured
    from kftrainer.machinery.cache.cache import Cache
    from kftrainer.machinery.cache.informer import Informer
    from kftrainer.machinery.cache.multi_namespace import MultiNamespaceInformer
    from kftrainer.machinery.controller.controller import Controller
    from kftrainer.machinery.controller.events import ObjectEvent
    from kftrainer.machinery.controller.handlers import enqueue_mapped, enqueue_owner, enqueue_self
    from kftrainer.machinery.controller.reconcile import (
        DONE,
        Reconciler,
        Request,
        Result,
        TerminalError,
    )
    from kftrainer.machinery.events.recorder import EventRecorder
    from kftrainer.machinery.manager.clock import Clock, SystemClock
    from kftrainer.machinery.manager.leader_election import LeaderElector
    from kftrainer.machinery.manager.manager import Manager, Parts, run_until_signalled
    from kftrainer.machinery.manager.runnable import Runnable
    from kftrainer.machinery.webhook.admission import AdmissionRequest, AdmissionResponse

__all__ = [
    "DONE",
    "AdmissionRequest",
    "AdmissionResponse",
    "Cache",
    "Client",
    "Clock",
    "Controller",
    "EventRecorder",
    "HttpTransport",
    "Informer",
    "LeaderElector",
    "Manager",
    "MultiNamespaceInformer",
    "ObjectEvent",
    "ObjectKey",
    "Parts",
    "Reconciler",
    "Request",
    "Resource",
    "Result",
    "Runnable",
    "SystemClock",
    "TerminalError",
    "enqueue_mapped",
    "enqueue_owner",
    "enqueue_self",
    "load_connection",
    "run_until_signalled",
    "unstructured",
]

_MODULES = {
    "kftrainer.kube.client.client": ("Client",),
    "kftrainer.kube.client.credentials": ("load_connection",),
    "kftrainer.kube.client.transport": ("HttpTransport",),
    "kftrainer.kube.objects.resource": ("ObjectKey", "Resource", "unstructured"),
    "kftrainer.machinery.cache.cache": ("Cache",),
    "kftrainer.machinery.cache.informer": ("Informer",),
    "kftrainer.machinery.cache.multi_namespace": ("MultiNamespaceInformer",),
    "kftrainer.machinery.controller.controller": ("Controller",),
    "kftrainer.machinery.controller.events": ("ObjectEvent",),
    "kftrainer.machinery.controller.handlers": ("enqueue_mapped", "enqueue_owner", "enqueue_self"),
    "kftrainer.machinery.controller.reconcile": (
        "DONE",
        "Reconciler",
        "Request",
        "Result",
        "TerminalError",
    ),
    "kftrainer.machinery.events.recorder": ("EventRecorder",),
    "kftrainer.machinery.manager.clock": ("Clock", "SystemClock"),
    "kftrainer.machinery.manager.leader_election": ("LeaderElector",),
    "kftrainer.machinery.manager.manager": ("Manager", "Parts", "run_until_signalled"),
    "kftrainer.machinery.manager.runnable": ("Runnable",),
    "kftrainer.machinery.webhook.admission": ("AdmissionRequest", "AdmissionResponse"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that commands load only what they need."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
