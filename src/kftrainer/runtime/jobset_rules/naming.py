"""Kubernetes' rules for names, with the same messages as Kubernetes."""

import re
from collections.abc import Iterator, Sequence

from kftrainer.runtime.validation.names import LABEL, LONGEST_LABEL

LONGEST_SUBDOMAIN = 253
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{_PART}(\.{_PART})*")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")

LABEL_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    f"regex used for validation is '{LABEL.pattern}')"
)
SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', "
    f"regex used for validation is '{SUBDOMAIN.pattern}')"
)
LABEL_VALUE_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value', "
    f" or '12345', regex used for validation is '{LABEL_VALUE.pattern}')"
)
PREFIXED_PATH_WORDS = 'must be a domain-prefixed path (such as "acme.io/foo")'
PATH_WORDS = f"Invalid path (regex used for validation is '{PATH.pattern}')"


def size(text: str) -> int:
    """Return the length in bytes, as Go's `len` does."""
    return len(text.encode(errors="surrogatepass"))


def label_faults(text: str, *, if_long: str) -> Sequence[str]:
    """Return why the text is not a DNS label (RFC 1035)."""
    is_label = LABEL.fullmatch(text) is not None  # a match is ASCII: each character is one byte
    if is_label and len(text) <= LONGEST_LABEL:
        return ()
    faults = [if_long] if size(text) > LONGEST_LABEL else []
    return faults if is_label else [*faults, LABEL_WORDS]


def subdomain_faults(text: str) -> Iterator[str]:
    """Yield why the text is not a DNS subdomain (RFC 1123)."""
    if size(text) > LONGEST_SUBDOMAIN:
        yield f"must be no more than {LONGEST_SUBDOMAIN} characters"
    if not SUBDOMAIN.fullmatch(text):
        yield SUBDOMAIN_WORDS


def label_value_faults(text: str) -> Iterator[str]:
    """Yield why the text is not a valid label value."""
    if size(text) > LONGEST_LABEL:
        yield f"must be no more than {LONGEST_LABEL} bytes"
    if not LABEL_VALUE.fullmatch(text):
        yield LABEL_VALUE_WORDS


def prefixed_path_faults(text: str) -> Iterator[str]:
    """Yield why the text is not a domain-prefixed path such as `acme.io/foo`."""
    if not text:
        yield "Required value"
        return
    host, _, path = text.partition("/")
    if not host or not path:
        yield PREFIXED_PATH_WORDS
        return
    yield from subdomain_faults(host)
    if not PATH.fullmatch(path):
        yield PATH_WORDS
