"""Whether a kind may be read, decided by one check."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, cast

from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.kube.client.client import Page
from kftrainer.kube.permissions import refusals_to_list

if TYPE_CHECKING:
    from kftrainer.kube.client.client import Client


class Pages:
    """A client whose lists have a page after the first."""

    open = 0

    async def list_pages(self, *_: Any, **__: Any) -> AsyncGenerator[Page, None]:
        self.open += 1
        try:
            yield Page([], "1")
            yield Page([], "1")
        finally:
            self.open -= 1


async def test_unused_pages_are_closed_immediately() -> None:
    pages = Pages()
    assert await refusals_to_list(cast("Client", pages), TRAIN_JOBS, ["a", "b"]) == {}
    assert pages.open == 0
