"""Reviews that the metrics endpoint requests before a scrape, and how long they are cached."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.transport import Lane, Response
from kftrainer.machinery.metrics.authorization import Authorization, bearer_token, guarded
from kftrainer.machinery.webhook.server import HttpRequest, HttpResponse
from tests.support.fake_clock import FakeClock, at_rest

USER = {
    "username": "ada",
    "uid": "7",
    "groups": ["staff"],
    "extra": {"scopes": ["a", "b"]},
}


class Reviewer:
    """A Transport to an API server that accepts one token."""

    def __init__(self) -> None:
        self.allows = True
        self.failures = 0  # that come before the next answer
        self.questions: list[dict[str, Any]] = []

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, **_: object
    ) -> Response:
        """Answer at once, or fail."""
        question = orjson.loads(body or b"null")
        self.questions.append(question)
        if self.failures:
            self.failures -= 1
            raise TransportError("gone")
        if question["kind"] == "TokenReview":
            is_valid = question["spec"]["token"] == "good"  # noqa: S105
            status = {"authenticated": True, "user": USER} if is_valid else {"error": "who?"}
        else:
            status = {"allowed": self.allows}
        return Response(201, {}, orjson.dumps({**question, "status": status}))

    def stream(
        self, path: str, *, query: Mapping[str, str], timeout: float, lane: Lane = "watch"
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Watches are not served."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""

    def reviews(self) -> list[str]:
        """The kinds of the questions since this was last called."""
        kinds = [question["kind"] for question in self.questions]
        self.questions.clear()
        return kinds


class MetricsPage:
    """A guarded page, a reviewer and the time."""

    def __init__(self) -> None:
        self.reviewer, self.clock = Reviewer(), FakeClock()
        authorization = Authorization(Client(self.reviewer), clock=self.clock)
        self._handler = guarded(self._page, authorization)

    async def _page(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, "page")

    async def get(self, header: str = "Bearer good", method: str = "GET") -> HttpResponse:
        return await self._handler(HttpRequest(method, "/metrics", (), {"Authorization": header}))


BOTH = ["TokenReview", "SubjectAccessReview"]


@pytest.fixture
def page() -> MetricsPage:
    return MetricsPage()


async def test_access_review_contains_all_user_attributes(page: MetricsPage) -> None:
    assert await page.get(method="POST") == HttpResponse(200, "page")
    assert page.reviewer.questions[1]["spec"] == {
        "user": "ada",
        "uid": "7",
        "groups": ["staff"],
        "extra": {"scopes": ["a", "b"]},
        "nonResourceAttributes": {"verb": "post", "path": "/metrics"},
    }


async def test_a_user_is_known_for_a_minute_and_allowed_for_five(page: MetricsPage) -> None:
    await page.get()
    assert page.reviewer.reviews() == BOTH
    await page.clock.advance(59)
    await page.get()
    assert page.reviewer.reviews() == []
    await page.clock.advance(1)
    await page.get()
    assert page.reviewer.reviews() == ["TokenReview"]
    await page.clock.advance(240)
    await page.get()
    assert page.reviewer.reviews() == BOTH


async def test_denial_is_cached_for_half_a_minute(page: MetricsPage) -> None:
    page.reviewer.allows = False
    denied = HttpResponse(403, "Authorization denied for user ada\n")
    assert await page.get() == denied
    page.reviewer.allows = True
    await page.clock.advance(29)
    assert await page.get() == denied
    await page.clock.advance(1)
    assert (await page.get()).status == 200


async def test_invalid_token_is_cached(page: MetricsPage) -> None:
    assert await page.get("Bearer bad") == HttpResponse(401, "Unauthorized\n")
    assert await page.get("Bearer bad") == HttpResponse(401, "Unauthorized\n")
    assert page.reviewer.reviews() == ["TokenReview"]


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "Bearer  "])
async def test_missing_token_is_rejected_without_a_review(page: MetricsPage, header: str) -> None:
    assert await page.get(header) == HttpResponse(401, "Unauthorized\n")
    assert page.reviewer.reviews() == []


async def test_transient_api_server_failure_is_retried(page: MetricsPage) -> None:
    page.reviewer.failures = 4
    async with asyncio.TaskGroup() as group:
        pending = group.create_task(page.get())
        await at_rest()
        first = page.clock.sleeping[0]
        assert 0.5 <= first < 0.6
        await page.clock.advance(10)
    assert pending.result().status == 200


async def test_persistent_api_server_failure_is_not_cached(
    page: MetricsPage,
) -> None:
    page.reviewer.failures = 5
    async with asyncio.TaskGroup() as group:
        pending = group.create_task(page.get())
        await page.clock.advance(10)
    assert pending.result() == HttpResponse(500, "Authentication failed\n")
    assert (await page.get()).status == 200


def test_bearer_scheme_is_case_insensitive() -> None:
    assert bearer_token("bearer abc") == "abc"
