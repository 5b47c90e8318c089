"""Text that came from a server is not trusted: it is made printable and short before anybody sees it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def printable(text: str, limit: int = 200) -> str:
    """One line of at most `limit` characters: no terminal escapes, controls, markup tags or CI commands (`::`)."""
    text = _CONTROL.sub(" ", _ANSI.sub("", text)).strip()
    text = re.sub(r"<[^<>]{0,200}>", " ", text)
    text = re.sub(r"\s+", " ", text).strip().lstrip(":").lstrip()
    text = re.sub(r":(?=:)", ": ", text)  # a folded cell may bring any part of a text to the start of a line
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str) -> str:
    """Text that we wrote, with names of the user's in it: no line breaks, controls or terminal escapes."""
    return _CONTROL.sub(" ", _ANSI.sub("", text))


def redact_url(url: str) -> str:
    """`url` without user, password and query values: what may be shown, logged and saved."""
    try:
        parts = urlsplit(url)
        given, _, host = parts.netloc.rpartition("@")
        netloc = f"***@{host}" if given else host
        return urlunsplit((parts.scheme, netloc, parts.path, "***" if parts.query else "", ""))
    except ValueError:  # no URL at all: nothing of it is safe to show
        return "***"
