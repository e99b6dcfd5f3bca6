from typing import Any

import pytest

from kftrainer.devcluster.nodes.kubelet.serving.authorization import (
    User,
    is_authorized,
    subresources,
    user_in,
)


def test_user_and_groups_are_those_of_the_certificate() -> None:
    subject = (
        (("organizationName", "a"),),
        (("organizationName", "b"),),
        (("commonName", "ada"),),
    )
    assert user_in({"subject": subject}) == User("ada", ("a", "b"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/containerLogs/ns/pod/main", ("proxy",)),
        ("/pods", ("pods", "proxy")),
        ("/healthz", ("healthz", "proxy")),
    ],
)
def test_paths_need_the_subresources_of_the_kubelet(path: str, expected: tuple[str, ...]) -> None:
    assert subresources(path) == expected


class Reviews:
    """An API server that permits one subresource."""

    def __init__(self, permitted: str) -> None:
        self.permitted = permitted

    async def create(self, review: dict[str, Any]) -> dict[str, Any]:
        wanted = review["spec"]["resourceAttributes"]["subresource"]
        return {"status": {"allowed": wanted == self.permitted}}


@pytest.mark.parametrize(("permitted", "expected"), [("proxy", True), ("pods", True), ("", False)])
async def test_one_permitted_subresource_is_enough(permitted: str, expected: bool) -> None:
    api: Any = Reviews(permitted)
    assert await is_authorized(api, User("ada", ()), "n", ("pods", "proxy")) is expected
