"""Authenticates and authorizes requests to our servers through the API server."""

import asyncio
import hashlib
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Generic, TypeVar

import structlog

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import (
    KubeError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured
from kftrainer.machinery.lru import Lru
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.webhook.server import Handler, HttpRequest, HttpResponse

log = structlog.get_logger(__name__)

TOKEN_REVIEWS: Resource[Manifest] = Resource(
    "authentication.k8s.io",
    "v1",
    "TokenReview",
    "tokenreviews",
    namespaced=False,
    decode=unstructured,
)
ACCESS_REVIEWS: Resource[Manifest] = Resource(
    "authorization.k8s.io",
    "v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
    namespaced=False,
    decode=unstructured,
)
CACHED_FOR = 60.0  # seconds to cache the user of a token, or that there is none
ALLOWED_FOR = 300.0
DENIED_FOR = 30.0
REMEMBERED = 4096
REVIEW_WITHIN = 10.0
TRIES = 5
FIRST_PAUSE = 0.5
PAUSE_GROWS_BY = 1.5
PAUSE_JITTER = 0.2
RETRYABLE = (TransportError, ServerError, TooManyRequestsError, TimeoutError)

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user, with all attributes that a SubjectAccessReview needs."""

    name: str
    uid: str
    groups: tuple[str, ...]
    extra: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Kept(Generic[V]):
    value: V
    until: float


def bearer_token(header: str) -> str | None:
    """Return the token in an Authorization header, or None."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def token_review(token: str) -> Manifest:
    """Return the TokenReview of a token."""
    return {
        "apiVersion": TOKEN_REVIEWS.api_version,
        "kind": TOKEN_REVIEWS.kind,
        "metadata": {},
        "spec": {"token": token},
    }


def user_in(review: Manifest) -> User | None:
    """Return the authenticated user in a TokenReview, or None."""
    status = review.get("status") or {}
    user = status.get("user") or {}
    if not status.get("authenticated") or not user.get("username"):
        return None
    extra = user.get("extra") or {}
    return User(
        name=user["username"],
        uid=user.get("uid") or "",
        groups=tuple(user.get("groups") or ()),
        extra=tuple((name, tuple(values)) for name, values in sorted(extra.items())),
    )


def access_review(user: User, verb: str, path: str) -> Manifest:
    """Return the SubjectAccessReview of a request."""
    return {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra},
            "nonResourceAttributes": {"verb": verb, "path": path},
        },
    }


class Authorization:
    """Reviews tokens and permissions through the API server; results are cached for a while."""

    def __init__(self, client: Client, *, clock: Clock, rng: Random | None = None) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng if rng is not None else SystemRandom()
        self._users: Lru[bytes, _Kept[User | None]] = Lru(REMEMBERED)
        self._permissions: Lru[tuple[User, str, str], _Kept[bool]] = Lru(REMEMBERED)

    async def user_of(self, token: str) -> User | None:
        """Return the user of the token; None if it is invalid. Raises if the review fails."""
        digest = hashlib.sha256(token.encode(errors="replace")).digest()  # tokens are not stored
        kept = self._users.get(digest)
        if kept is None or kept.until <= self._clock.monotonic():
            user = user_in(await self._review(TOKEN_REVIEWS, token_review(token)))
            kept = _Kept(user, self._clock.monotonic() + CACHED_FOR)
            self._users.put(digest, kept)
        return kept.value

    async def is_allowed(self, user: User, verb: str, path: str) -> bool:
        """Return whether the user may perform the request. Raises if the review fails."""
        kept = self._permissions.get((user, verb, path))
        if kept is None or kept.until <= self._clock.monotonic():
            review = await self._review(ACCESS_REVIEWS, access_review(user, verb, path))
            allowed = bool((review.get("status") or {}).get("allowed"))
            good_for = ALLOWED_FOR if allowed else DENIED_FOR
            kept = _Kept(allowed, self._clock.monotonic() + good_for)
            self._permissions.put((user, verb, path), kept)
        return kept.value

    async def _review(self, resource: Resource[Manifest], review: Manifest) -> Manifest:
        pause = FIRST_PAUSE
        for _ in range(TRIES - 1):
            try:
                return await self._review_once(resource, review)
            except RETRYABLE as error:
                log.info("authorization_retried", kind=resource.kind, error=str(error))
            await self._clock.sleep(pause * (1 + PAUSE_JITTER * self._rng.random()))
            pause *= PAUSE_GROWS_BY
        return await self._review_once(resource, review)

    async def _review_once(self, resource: Resource[Manifest], review: Manifest) -> Manifest:
        async with asyncio.timeout(REVIEW_WITHIN):
            return await self._client.create(resource, review)


def guarded(handler: Handler, authorization: Authorization) -> Handler:
    """Wrap a handler so that only authorized users reach it; errors as in controller-runtime."""

    async def guard(request: HttpRequest) -> HttpResponse:
        return await _refusal(request, authorization) or await handler(request)

    return guard


async def _refusal(request: HttpRequest, authorization: Authorization) -> HttpResponse | None:
    token = bearer_token(request.headers.get("Authorization", ""))
    if token is None:
        return HttpResponse(401, "Unauthorized\n")
    try:
        user = await authorization.user_of(token)
    except (KubeError, TimeoutError):
        log.exception("token_review_failed")
        return HttpResponse(500, "Authentication failed\n")
    if user is None:
        return HttpResponse(401, "Unauthorized\n")
    try:
        allowed = await authorization.is_allowed(user, request.method.lower(), request.path)
    except (KubeError, TimeoutError):
        log.exception("subject_access_review_failed", user=user.name)
        return HttpResponse(500, f"Authorization for user {user.name} failed\n")
    return None if allowed else HttpResponse(403, f"Authorization denied for user {user.name}\n")
