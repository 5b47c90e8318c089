"""Makes the two network namespaces of a link, keeps them, and kills what runs in them when its owner is gone.

The owner holds the other end of our stdin. Its end (also by SIGKILL) is the sign to go: every process still inside is
killed, then we end too, and with the last process the kernel frees the namespaces and every device in them. A pipe and
not PR_SET_PDEATHSIG: that signal comes when the *thread* that started us ends, and does not reach grandchildren.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pddbench.wan.inside.kernel import CLONE_NEWNET, CLONE_NEWUSER, say, set_up, unshare

CLOSED = "closed"  # what the owner writes when it ends the link on purpose
_KILL_TIMEOUT_S = 10.0
_NO_RIGHT = (
    " (run as root, or allow unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1, on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)
_HINTS = {
    errno.EPERM: _NO_RIGHT,
    errno.EACCES: _NO_RIGHT,
    errno.ENOSPC: " (the limit of namespaces: sysctl user.max_user_namespaces, user.max_net_namespaces)",
}


def main(arguments: list[str]) -> None:
    """`arguments`, in JSON: sysctls to pin (values in order of preference), names of those to record too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is for the owner
    pinned, recorded = json.loads(arguments[0]), json.loads(arguments[1])
    try:
        report = _make(pinned, recorded)
    except OSError as error:
        say(
            json.dumps({"error": f"the kernel says {str(error.strerror or error)!r}{_HINTS.get(error.errno or 0, '')}"})
        )
        return
    owner_pid = os.getppid()
    say(json.dumps(report))
    if sys.stdin.read() != CLOSED:  # the owner died
        _wait_for_the_end_of(owner_pid)
    kill_all({os.fstat(report["a"]["fd"]).st_ino, os.fstat(report["b"]["fd"]).st_ino})


def _wait_for_the_end_of(owner_pid: int) -> None:
    """Its files are closed a moment before its children can see that it is gone: until then one could still enter."""
    until = time.monotonic() + _KILL_TIMEOUT_S
    while os.getppid() == owner_pid and time.monotonic() < until:
        time.sleep(0.002)


def _make(pinned: dict[str, list[str]], recorded: list[str]) -> dict[str, Any]:
    """Both namespaces; we end up in the second."""
    report: dict[str, Any] = {"user_fd": _first_namespace()}
    for side in ("a", "b"):
        if side == "b":
            unshare(CLONE_NEWNET)
        set_up("lo")
        report[side] = {
            "fd": os.open("/proc/self/ns/net", os.O_RDONLY),
            "sysctls": {name: write_sysctl(name, values) for name, values in pinned.items()},
            "recorded": {name: read_sysctl(name) for name in recorded},
        }
    return report


def _first_namespace() -> int | None:
    """Move into a new network namespace. None: root could; else a file of the user namespace that it took."""
    if os.geteuid() == 0:
        try:
            unshare(CLONE_NEWNET)
        except PermissionError:
            pass  # root in a container without CAP_SYS_ADMIN: as anybody else
        else:
            return None
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    return os.open("/proc/self/ns/user", os.O_RDONLY)


def write_sysctl(name: str, values: list[str]) -> dict[str, object]:
    """Set one to the first value the kernel takes, and read it back; a refusal is recorded, never hidden."""
    refused = {}
    for value in values:
        try:
            _sysctl(name).write_text(value)
            break
        except OSError as error:
            refused[value] = str(error.strerror)
    return {"wanted": values[0], "is": read_sysctl(name), **({"refused": refused} if refused else {})}


def read_sysctl(name: str) -> str:
    """The value in this namespace, single spaces, or why it cannot be read."""
    try:
        return " ".join(_sysctl(name).read_text().split())
    except OSError as error:
        return f"({error.strerror})"


def _sysctl(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def kill_all(namespaces: set[int]) -> None:
    """SIGKILL every process in these network namespaces (inode numbers) but this one, until there is none."""
    until = time.monotonic() + _KILL_TIMEOUT_S
    while (inside := _inside(namespaces)) and time.monotonic() < until:
        for pid in inside:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)


def _inside(namespaces: set[int]) -> list[int]:
    """Process ids in these namespaces, zombies excluded (they hold no namespace, so their link is unreadable)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if (entry / "ns" / "net").stat().st_ino in namespaces:
                    found.append(int(entry.name))
            except OSError:
                continue  # gone, or of another user: not in a namespace of ours
    return found
