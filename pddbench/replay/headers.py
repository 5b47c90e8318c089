"""Headers of a request, and the secrets among them that must never be seen."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from urllib.parse import quote, unquote, urlsplit

from pddbench import __version__
from pddbench.errors import InputError
from pddbench.replay import credentials
from pddbench.replay.exchange import Target
from pddbench.text import printable

_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)


def request_headers(target: Target) -> dict[str, str]:
    """All headers of a request; the credential is read from the environment here, and lives only in memory."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        "User-Agent": f"pddbench/{__version__}",
    }
    if target.api_key_env:
        key = os.environ.get(target.api_key_env, "").strip()
        if not key:
            raise InputError(f"the environment variable {target.api_key_env} (api_key_env) is not set or empty")
        headers["Authorization"] = f"Bearer {key}"
    headers |= target.headers
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\0]", value):
            raise InputError(f"header {printable(name, 40)!r} has characters that cannot be sent")
    return headers


def request_id_value(request_id: str) -> str:
    """A request's id as the value of a header."""
    return quote(request_id, safe="!#$&'()*+,/:;=?@[] ")


def secrets_of(target: Target, headers: dict[str, str]) -> list[str]:
    """What must never be seen: all header values that the user gave, the key, and the URL's own credentials.

    From now on those that are named as such are kept out of everything (`credentials`).
    """
    values = [value for name, value in headers.items() if name in target.headers or _SECRET_HEADER.search(name)]
    parts = urlsplit(target.url)
    values += [unquote(parts.password or ""), parts.password or "", parts.query]
    named = [value for name, value in headers.items() if _SECRET_HEADER.search(name)]
    named += [unquote(parts.password or ""), parts.password or ""]
    credentials.remember(part for value in named for part in (value, value.rpartition(" ")[2]))
    return [secret for value in values for secret in (value, value.rpartition(" ")[2]) if len(secret) >= 4]


def hider(secrets: list[str]) -> Callable[[str], str]:
    """A function that takes the secrets out of a text."""

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return hide
