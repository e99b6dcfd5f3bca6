"""Paths that end with a secret."""

from pathlib import Path

import pytest

from kftrainer.machinery.webhook.path_tokens import PathTokenError, tokens_in, with_tokens
from kftrainer.machinery.webhook.server import HttpRequest, HttpResponse

NEW, OLD = "0123456789abcdef", "fedcba9876543210"


async def path_of(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, request.path)


async def answer(path: str, *tokens: str) -> tuple[int, object]:
    """What is answered at this path by a server that accepts these tokens."""
    found = await with_tokens(path_of, tokens)(HttpRequest("POST", path, (), {}))
    return found.status, found.body if found.status == 200 else ""


async def test_paths_with_an_accepted_token_reach_the_handler_without_it() -> None:
    for token in (NEW, OLD):
        assert await answer(f"/validate/{token}", NEW, OLD) == (200, "/validate")


@pytest.mark.parametrize("path", ["/validate", f"/validate/{OLD}", f"/{NEW}x", "/", "", "/ä", NEW])
async def test_paths_without_an_accepted_token_are_not_found(path: str) -> None:
    expected = (200, "") if path == NEW else (404, "")
    assert await answer(path, NEW) == expected


async def test_paths_without_a_token_may_be_accepted_while_one_is_introduced() -> None:
    assert await answer("/validate", "plain", NEW) == (200, "/validate")
    assert await answer(f"/validate/{NEW}", "plain", NEW) == (200, "/validate")
    assert await answer("/validate/plain", NEW) == (404, "")


def test_tokens_are_read_from_the_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{NEW}\n{OLD}\nplain\n")
    assert tokens_in(file) == [NEW, OLD, "plain"]


@pytest.mark.parametrize("text", ["", "\n", "short", NEW.upper(), "x" * 64, f"{NEW}/a"])
def test_unusable_tokens_are_reported_without_their_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens"
    with pytest.raises(PathTokenError, match="cannot be read"):
        tokens_in(file)
    file.write_text(text)
    with pytest.raises(PathTokenError, match="token") as raised:
        tokens_in(file)
    assert not text.strip() or text not in str(raised.value)
