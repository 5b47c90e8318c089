"""Taking away what `pddbench wan apply` put on a device: by a journal's facts, only what is ours, as often as wanted.

Only the standard library: the keeper (`wan.inside.keeper`) does it as well as `pddbench wan clear`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT_HANDLE = "7dd0:"  # of the root qdisc; so that ours is told apart from anybody else's
IFB_PREFIX = "pddwan"
_TIMEOUT_S = 10.0
_ABSENT = ("does not exist", "Cannot find device", "No such device")


class Refused(Exception):
    """A command failed; the text is the kernel's."""


def run(argv: list[str]) -> str:
    """What a command prints. Raises `Refused`."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{argv[0]}: {error}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit {done.returncode}"]
        raise Refused(lines[0].removeprefix("Error: ").rstrip("."))
    return done.stdout


def listed(argv: list[str]) -> list[dict[str, Any]]:
    """What a command lists as JSON; a device that is not there lists nothing. Any other failure is one (`Refused`)."""
    try:
        text = run(argv)
    except Refused as error:
        if any(words in str(error) for words in _ABSENT):
            return []
        raise
    try:
        rows: list[dict[str, Any]] = json.loads(text or "[]")
    except ValueError:
        raise Refused(f"`{' '.join(argv)}` printed no JSON") from None
    return rows


def undo(facts: dict[str, Any]) -> list[str]:
    """Take everything of a journal away; what could not be, in words. Things that are gone already are fine."""
    problems = []
    for step in (_root, _ingress, _ifb, _segments):
        try:
            step(facts)
        except Refused as error:
            problems.append(f"{facts['dev']}: {error}")
    return problems


def forget(path: Path) -> None:
    """The journal is done with."""
    path.unlink(missing_ok=True)


def is_there(facts: dict[str, Any]) -> bool:
    """Whether the device is the one that was shaped: the same name and index."""
    found = listed([facts["ip"], "-j", "link", "show", "dev", facts["dev"]])
    return bool(found) and found[0].get("ifindex") == facts["ifindex"]


def root_qdisc(tc: str, dev: str) -> dict[str, Any] | None:
    """The qdisc at a device's root."""
    rows = listed([tc, "-j", "qdisc", "show", "dev", dev])
    return next((row for row in rows if row.get("root")), None)


def _root(facts: dict[str, Any]) -> None:
    if is_there(facts):
        found = root_qdisc(facts["tc"], facts["dev"])
        if found is not None and found.get("handle") == ROOT_HANDLE:
            run([facts["tc"], "qdisc", "delete", "dev", facts["dev"], "root"])


def _ingress(facts: dict[str, Any]) -> None:
    if not facts.get("ifb") or not is_there(facts):
        return
    rows = listed([facts["tc"], "-j", "qdisc", "show", "dev", facts["dev"]])
    if not any(row.get("kind") == "ingress" for row in rows):
        return
    filters = run([facts["tc"], "filter", "show", "dev", facts["dev"], "ingress"])
    redirected = filters.count("mirred")
    if redirected != filters.count(f"to device {facts['ifb']})"):
        raise Refused("somebody else's filters are in the ingress qdisc that we made: it stays")
    run([facts["tc"], "qdisc", "delete", "dev", facts["dev"], "ingress"])


def _ifb(facts: dict[str, Any]) -> None:
    if facts.get("ifb") and listed([facts["ip"], "-j", "link", "show", "dev", facts["ifb"]]):
        run([facts["ip"], "link", "delete", facts["ifb"]])


def _segments(facts: dict[str, Any]) -> None:
    """Super-packets as they were before a loss needed them off."""
    if facts.get("gso_max_segs") and is_there(facts):
        run([facts["ip"], "link", "set", facts["dev"], "gso_max_segs", str(facts["gso_max_segs"])])


def network_namespace() -> int:
    """Number of this process's network namespace: a journal counts only in its own."""
    return os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116  (PurePath only: no site here)
