"""Structured logging: one JSON object per line, or readable text on a terminal."""

import json
import logging
import sys
from typing import Literal, TextIO

import orjson
import structlog
from structlog.types import EventDict, Processor

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["json", "console"]

LEVELS: dict[Level, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
# The first keys of a JSON entry; the others follow in alphabetical order.
FIRST = ("timestamp", "level", "logger", "event")
# At DEBUG these log whole responses of the API server, including Secrets.
NEVER_AT_DEBUG = ("kubernetes_asyncio",)


def set_up(level: Level = "info", form: Form | None = None, stream: TextIO | None = None) -> None:
    """Write our logs and those of libraries to the stream, by default standard error.

    Without a form, logs are text on a terminal and JSON elsewhere.
    """
    stream = sys.stderr if stream is None else stream
    form = form or ("console" if stream.isatty() else "json")
    _route_libraries(LEVELS[level], _formatter(form), stream)
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _shared() -> list[Processor]:
    """Return the processors for every entry, including those of libraries."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter(form: Form) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *(_as_json() if form == "json" else _as_text()),
        ],
    )


def _as_json() -> list[Processor]:
    # Local variables may contain tokens and keys, which must not appear in a traceback.
    traceback = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [
        structlog.processors.ExceptionRenderer(traceback),
        _in_order,
        structlog.processors.JSONRenderer(serializer=_json),
    ]


def _in_order(_logger: object, _method: str, entry: EventDict) -> EventDict:
    """Order the keys, because values of the context are added in any order."""
    return {key: entry[key] for key in sorted(entry, key=_place)}


def _place(key: object) -> tuple[int, str]:
    return (FIRST.index(key), "") if key in FIRST else (len(FIRST), str(key))


def _as_text() -> list[Processor]:
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(exception_formatter=plain)]


def _json(entry: object, **_: object) -> str:
    try:
        return orjson.dumps(entry, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # huge integers or lone surrogates: rare, but the entry must not be lost
        return json.dumps(entry, default=repr)


def _route_libraries(level: int, formatter: logging.Formatter, stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in NEVER_AT_DEBUG:
        logging.getLogger(name).setLevel(max(level, logging.INFO))
