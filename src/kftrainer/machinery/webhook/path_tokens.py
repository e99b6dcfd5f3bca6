"""Secret tokens in request paths: other requests get a 404, and their body is not read."""

import re
from collections.abc import Collection
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path

from kftrainer.machinery.webhook.server import NOT_FOUND, Handler, HttpRequest, HttpResponse

PLAIN = "plain"  # instead of a token: paths without a token are accepted as well
TOKEN = re.compile(r"[a-z0-9]{16,63}")  # allowed by the API server in a path segment


class PathTokenError(Exception):
    """The path tokens cannot be used; the message for the operator does not contain them."""


def tokens_in(file: Path) -> Collection[str]:
    """Return the tokens in a file, one per line."""
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise PathTokenError(f"The path tokens cannot be read: {error}") from error
    if not lines:
        raise PathTokenError(f"{file} contains no path token")
    for number, line in enumerate(lines, 1):
        if line != PLAIN and TOKEN.fullmatch(line) is None:
            raise PathTokenError(
                f"{file}: token {number} must be 16 to 63 lower-case letters and digits, or {PLAIN}"
            )
    return lines


def with_tokens(handler: Handler, tokens: Collection[str]) -> Handler:
    """Pass on only requests whose last path segment is one of the tokens."""
    secrets = [each.encode() for each in tokens if each != PLAIN]
    accepts_plain = PLAIN in tokens

    async def handle(request: HttpRequest) -> HttpResponse:
        path, _, token = request.path.rpartition("/")
        if any(compare_digest(token.encode(), each) for each in secrets):  # in constant time
            return await handler(replace(request, path=path))
        return await handler(request) if accepts_plain else NOT_FOUND

    return handle
