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
    return text if len(text) <= limit else text[: limit - 1] + "…"


def redact_url(url: str) -> str:
    """`url` without user, password and query values: what may be shown, logged and saved."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    netloc = host + (f":{parts.port}" if parts.port else "")
    if parts.username or parts.password:
        netloc = "***@" + netloc
    return urlunsplit((parts.scheme, netloc, parts.path, "***" if parts.query else "", ""))
