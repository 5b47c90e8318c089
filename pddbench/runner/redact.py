"""Secrets stay out of files, logs and reports: argv, configuration and URLs pass through here before they are kept."""

from __future__ import annotations

import re
from typing import Any

from pddbench.text import redact_url

_SECRET_NAME = re.compile(r"auth|api[-_]?key|token$|secret|passw|cookie|credential|signature", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"]+", re.IGNORECASE)
_USERINFO = re.compile(r"(?<![\w@])[^\s/@=]+@(?=[\w.\[])")  # `user:password@host` of a URL without a scheme
HIDDEN = "***"


def redact_text(text: str) -> str:
    """`text` with user, password and query of every URL in it hidden."""
    return _USERINFO.sub("***@", _URL.sub(lambda match: redact_url(match.group(0)), text))


def redact_argv(argv: list[str]) -> list[str]:
    """A command line that may be shown: header values, bodies and URL credentials hidden."""
    out: list[str] = []
    hide_next = False
    for word in argv:
        flag, _, value = word.partition("=")
        if hide_next:
            out.append(_hide_value(word))
        elif flag in _SECRET_FLAGS and value:
            out.append(f"{flag}={_hide_value(value)}")
        else:
            out.append(redact_text(word))
        hide_next = word in _SECRET_FLAGS
    return out


_SECRET_FLAGS = ("--header", "-H", "--extra-body")


def _hide_value(word: str) -> str:
    """`K=V` keeps its key; anything else is hidden whole."""
    key, separator, _ = word.partition("=")
    return f"{key}={HIDDEN}" if separator and not word.lstrip().startswith("{") else HIDDEN


def redact_config(value: Any, key: str = "") -> Any:
    """A configuration that may be saved: values under secret-looking keys, all headers, and URL secrets hidden."""
    if key == "headers" and isinstance(value, dict):
        return dict.fromkeys(value, HIDDEN)
    if key == "extra_body" and isinstance(value, dict):
        return {name: item if isinstance(item, bool | int | float) else HIDDEN for name, item in value.items()}
    if isinstance(value, dict):
        return {name: redact_config(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_config(item, key) for item in value]
    if isinstance(value, str):
        secret = _SECRET_NAME.search(key) and not key.endswith("_env")
        return HIDDEN if secret else redact_text(value)
    return value
