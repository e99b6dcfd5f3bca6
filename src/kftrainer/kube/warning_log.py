"""Warnings in successful API responses, for example about deprecated versions."""

import re
from collections.abc import Mapping

import structlog

from kftrainer.kube.redaction import redacted

WARNING = re.compile(r'\b\d{3} \S+ "((?:[^"\\]|\\.)*)"')
REMEMBERED = 1000

log = structlog.get_logger()


class WarningLog:
    """Logs each warning once, because the same requests are sent repeatedly."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, headers: Mapping[str, str], path: str) -> None:
        """Log the warnings of a response, without field values, unless logged before."""
        header = headers.get("Warning")
        if header is None:
            return
        for text in map(redacted, warnings_in(header)):
            if text not in self._logged:
                if len(self._logged) >= REMEMBERED:
                    self._logged.clear()
                self._logged.add(text)
                log.warning("api_warning", text=text, path=path)


def warnings_in(header: str) -> list[str]:
    """Return the texts of a header such as `299 - "one", 299 - "another"`."""
    return [re.sub(r"\\(.)", r"\1", text) for text in WARNING.findall(header)]
