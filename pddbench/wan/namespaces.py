"""Two network namespaces of our own, one for each side of a link, that no crash leaves behind.

They have no name: nothing is put in /run/netns. They live as long as a process or an open file of ours holds them; a
`holder` process waits for our end and kills what still runs inside (`wan.inside.holder`). Both sides are namespaces,
and neither is the host's own, so that no device, address, route or sysctl of the host is touched, and no privilege over
the host's network is needed. Clients on the host still reach a server in side A: a listening socket belongs to the
namespace it was made in, so one bound to the host's loopback and inherited by a process of side A serves the host's
clients, on a path that has nothing of the WAN in it (`Side.popen(…, pass_fds=[listener.fileno()])`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from pddbench.errors import WorldError
from pddbench.wan.inside.enter import NOT_FOUND, NOT_RUNNABLE
from pddbench.wan.inside.holder import CLOSED
from pddbench.wan.inside.kernel import CLONE_NEWNET, setns

CONGESTION_CONTROL = ("cubic", "reno")  # the host's default may be BBR: 4 times as fast at 0.1% loss, and no law for it
PINNED = {
    "net.ipv4.tcp_no_metrics_save": ["1"],  # a second connection must not profit from the first
    "net.ipv4.tcp_slow_start_after_idle": ["0"],
    "net.ipv4.tcp_rmem": ["4096 131072 67108864"],
    "net.ipv4.tcp_wmem": ["4096 65536 67108864"],  # the kernel's 4 MiB would cap a flow at 1.1 Gbit/s at 30 ms
    # EPERM for cubic where the host does not list it as allowed; a socket's own TCP_CONGESTION still works.
    "net.ipv4.tcp_congestion_control": list(CONGESTION_CONTROL),
    "net.ipv6.conf.default.disable_ipv6": ["1"],  # no router solicitations on the link: its counters are ours alone
}
RECORDED = [
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_moderate_rcvbuf",
]
_ROOT = Path(__file__).resolve().parents[2]
_BOOT = """\
import sys, importlib
sys.path.insert(0, sys.argv.pop(1))
importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:])
"""
_READY_TIMEOUT_S = 30.0  # a starved guest needs more than ten
_END_TIMEOUT_S = 15.0


def program(name: str, *arguments: str) -> list[str]:
    """The command line of a program in `wan.inside`: Python without `site`, which starts in a few ms."""
    return [sys.executable, "-I", "-S", "-c", _BOOT, str(_ROOT), f"pddbench.wan.inside.{name}", *arguments]


def _run(argv: Sequence[str], timeout_s: float, fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, pass_fds=fds, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )


class Side:
    """One end of a link: a network namespace, and the address that the other end reaches it by."""

    def __init__(self, name: str, address: str, net_fd: int, user_fd: int | None) -> None:
        self.name = name
        self.address = address
        self.net_fd = net_fd
        self._user_fd = user_fd
        self._started: list[subprocess.Popen[Any]] = []

    @property
    def enter_arguments(self) -> tuple[str, str]:
        """What `wan.inside.enter.enter` takes; both files must be passed to the process."""
        return ("-" if self._user_fd is None else str(self._user_fd)), str(self.net_fd)

    @property
    def fds(self) -> tuple[int, ...]:
        """Open files that a process needs to enter."""
        return (self.net_fd,) if self._user_fd is None else (self.net_fd, self._user_fd)

    def popen(self, argv: Sequence[str], *, pass_fds: Sequence[int] = (), **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside; options as of `subprocess.Popen`. Exit 127: no such program, 126: not runnable."""
        popen = subprocess.Popen(self._entering(argv), pass_fds=(*pass_fds, *self.fds), **options)
        self._started.append(popen)
        return popen

    def run(self, argv: Sequence[str], timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a program inside to its end; its output as text."""
        if self._user_fd is not None:  # a process with threads cannot enter a user namespace: by way of another program
            return _run(self._entering(argv), timeout_s, self.fds)
        with ThreadPoolExecutor(1) as executor:  # a thread of its own, which ends inside: a third of the time
            return executor.submit(self._run_inside, argv, timeout_s).result()

    def _run_inside(self, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        setns(self.net_fd, CLONE_NEWNET)
        try:
            return _run(argv, timeout_s)
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
            return subprocess.CompletedProcess(argv, code, "", f"cannot run {argv[0]!r}: {error.strerror}")

    def _entering(self, argv: Sequence[str]) -> list[str]:
        return program("enter", str(os.getpid()), *self.enter_arguments, *argv)

    def end_started(self) -> None:
        """Kill what `popen` started and still runs, also if it has not got inside yet."""
        for popen in self._started:
            if popen.poll() is None:
                popen.kill()
                popen.wait()
        self._started = []


class Namespaces:
    """Both sides, without a link between them yet. A context manager; `WorldError` when the host refuses."""

    def __init__(self, address_a: str, address_b: str) -> None:
        self._holder = subprocess.Popen(
            program("holder", json.dumps(PINNED), json.dumps(RECORDED)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for us; the holder goes when we do
        )
        self._fds: list[int] = []
        self._sides: list[Side] = []
        try:
            report = self._report()
            user_fd = None if report["user_fd"] is None else self._open(report["user_fd"])
            self.a = Side("a", address_a, self._open(report["a"]["fd"]), user_fd)
            self.b = Side("b", address_b, self._open(report["b"]["fd"]), user_fd)
            self._sides = [self.a, self.b]
        except BaseException:
            self.close()
            raise
        self.rootless = user_fd is not None
        self.facts: dict[str, Any] = {
            "privilege": "unprivileged user namespace" if self.rootless else "root",
            **{side: {key: report[side][key] for key in ("sysctls", "recorded")} for side in ("a", "b")},
        }

    @property
    def holder_pid(self) -> int:
        """The process that is in side B."""
        return self._holder.pid

    def _report(self) -> dict[str, Any]:
        stdout, stderr = self._holder.stdout, self._holder.stderr
        assert stdout is not None and stderr is not None
        readable, _, _ = select.select([stdout], [], [], _READY_TIMEOUT_S)
        line = stdout.readline() if readable else b""
        if not line:
            reason = stderr.read().decode(errors="replace").strip().splitlines()[-1:] if readable else ["no answer"]
            raise WorldError(f"cannot make network namespaces: {' '.join(reason) or 'the holder ended'}")
        report: dict[str, Any] = json.loads(line)
        if "error" in report:
            raise WorldError(f"cannot make network namespaces here: {report['error']}")
        return report

    def _open(self, fd_of_holder: int) -> int:
        fd = os.open(f"/proc/{self._holder.pid}/fd/{fd_of_holder}", os.O_RDONLY)
        self._fds.append(fd)
        return fd

    def close(self) -> None:
        """Kill what runs inside, and let go of both namespaces; harmless when done twice."""
        holder = self._holder
        if holder.returncode is not None:
            return
        assert holder.stdin is not None and holder.stdout is not None and holder.stderr is not None
        for side in self._sides:
            side.end_started()
        try:
            holder.stdin.write(CLOSED.encode())
            holder.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already
        try:
            holder.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()
        holder.stdout.close()
        holder.stderr.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
