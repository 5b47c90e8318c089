"""Enter a namespace and become another program: `OWNER_PID USER_FD|- NET_FD PROGRAM ARGUMENT…`."""

from __future__ import annotations

import os
import sys

from pddbench.wan.inside.kernel import CLONE_NEWNET, CLONE_NEWUSER, setns

NOT_FOUND, NOT_RUNNABLE = 127, 126  # as shells do


def enter(user_fd: str, net_fd: str) -> None:
    """Move this process into the user namespace (`-`: none is needed) and the network namespace of open files."""
    if user_fd != "-":
        setns(int(user_fd), CLONE_NEWUSER)
    setns(int(net_fd), CLONE_NEWNET)


def main(arguments: list[str]) -> None:
    """Never returns: the program takes over, or the exit code says why not."""
    owner_pid, user_fd, net_fd, *argv = arguments
    enter(user_fd, net_fd)
    if os.getppid() != int(owner_pid):  # it died, and the holder may have looked before we were inside
        sys.exit(1)
    for fd in {user_fd, net_fd} - {"-"}:
        os.close(int(fd))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"pddbench: cannot run {argv[0]!r}: {error.strerror}\n")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE)
