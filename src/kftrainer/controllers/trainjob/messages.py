"""Condition messages: maximum length, and whether two of them report the same error. Pure."""

import re

LONGEST_MESSAGE = 1024  # characters of a condition's message
ENDING = " ..."
COMPARED = LONGEST_MESSAGE // 2  # characters of a shortened message that are compared

# Parts of error messages that differ each time although the error is the same. The order matters:
# text that matches an earlier alternative may contain text that matches a later one.
_VOLATILE = re.compile(
    r"""
    (?P<time> \b\d{4}-\d\d-\d\d [T\ ] \d\d:\d\d:\d\d (?:\.\d+)?
              (?: \ ?Z | \ ?[+-]\d\d:?\d\d )? (?:\ [A-Z]{3,4}\b)? (?:\ m=[+-][\d.]+)? )
  | (?P<uid>  \b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b )
  | (?P<host> \[[0-9a-fA-F:.%\w]*:[0-9a-fA-F:.%\w]*\]:\d+ | \b\d{1,3}(?:\.\d{1,3}){3}:\d+ )
  | (?P<hex>  \b0x[0-9a-fA-F]+\b | \b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{16,}\b )
  | (?P<key>  (?<=resourceVersion)[:=]?\ ?"?\d+ | (?<=\bresource\ version)[:=]?\ ?"?\d+
            | (?<=\b[Rr]equest[ -][Ii][Dd])[:=]?\ ?"?[\w.-]+ )
  | (?P<span> \b(?:\d+(?:\.\d+)?(?:ns|µs|us|ms|h|m|s))+\b
            | \b\d+(?:\.\d+)?\ (?:milliseconds?|seconds?|minutes?|hours?)\b )
    """,
    re.VERBOSE,
)


def condition_message(text: str) -> str:
    """Return the text for a condition, shortened if it is too long."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    return text[: LONGEST_MESSAGE - len(ENDING)] + ENDING


def same_message(one: str, other: str) -> bool:
    """Whether two messages differ only in addresses, times, identifiers and durations."""
    if one == other:
        return True
    if max(len(one), len(other)) > LONGEST_MESSAGE:
        return False  # not written by this manager
    first, second = _normalized(one), _normalized(other)
    if one.endswith(ENDING) or other.endswith(ENDING):
        # A volatile part that is longer or shorter moves the place at which a message is cut.
        return first[:COMPARED] == second[:COMPARED]
    return first == second


def _normalized(text: str) -> str:
    return _VOLATILE.sub(lambda found: f"<{found.lastgroup}>", text)
