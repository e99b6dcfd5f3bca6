"""What the API server warns of in answers that are no errors, such as versions that will end."""

import re
from collections.abc import Mapping

import structlog

from kftrainer.kube.redaction import redacted

WARNING = re.compile(r'\b\d{3} \S+ "((?:[^"\\]|\\.)*)"')
REMEMBERED = 1000

log = structlog.get_logger()


class WarningLog:
    """Logs every warning once: the same request is made again and again."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def log(self, headers: Mapping[str, str], path: str) -> None:
        """Log what this answer warns of, without values, unless it was logged before."""
        header = headers.get("Warning")
        if header is None:
            return
        for text in map(redacted, warnings_in(header)):
            if text not in self._told:
                if len(self._told) >= REMEMBERED:
                    self._told.clear()
                self._told.add(text)
                log.warning("api.warning", text=text, path=path)


def warnings_in(header: str) -> list[str]:
    """The texts in a header such as `299 - "one", 299 - "another"`."""
    return [re.sub(r"\\(.)", r"\1", text) for text in WARNING.findall(header)]
