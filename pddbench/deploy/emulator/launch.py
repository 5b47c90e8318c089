"""Starting and ending an emulated deployment: router, cluster A and cluster B as processes of their own.

With real packets router and cluster A are in one network namespace, cluster B in another, and only the link is between
them. The router's listening socket is made here, in the host's namespace: the client's path has nothing of the WAN.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import msgspec

from pddbench.deploy.emulator.node import ProcessSpec
from pddbench.deploy.emulator.spec import CROSSES, EmulatorSpec
from pddbench.errors import InputError, WorldError
from pddbench.text import printable
from pddbench.wan.backends import PACKET_BACKENDS
from pddbench.wan.steps import applied_on_time

if TYPE_CHECKING:
    from pddbench.wan.guard import Guard
    from pddbench.wan.namespaces import Side

_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_LOOK_S = 0.1


class LaunchStopped(Exception):
    """A signal came before the deployment was up."""


class _Process:
    """One process of a deployment; its stdin stays open, and its end is the sign to go."""

    def __init__(self, role: str, side: Side | None, pass_fds: Sequence[int]) -> None:
        self.role = role
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        popen = subprocess.Popen if side is None else side.popen
        self._popen: subprocess.Popen[bytes] = popen(
            [sys.executable, "-m", "pddbench.deploy.emulator.process", role],
            pass_fds=pass_fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # a Ctrl-C is for pddbench, which then ends its processes itself
            env=environment(),
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def start(self, spec: ProcessSpec, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Hand over the spec; returns what it says when it is ready: its `port`, and facts of its own.

        Raises `LaunchStopped` as soon as `stopped()`.
        """
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(msgspec.json.encode(spec) + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise WorldError(self.obituary()) from None
        ready: dict[str, Any] = json.loads(self._ready_line(stopped))
        if "error" in ready:
            raise WorldError(f"the emulator's {_name(self.role)} cannot start: {printable(str(ready['error']))}")
        return ready

    def _ready_line(self, stopped: Callable[[], bool]) -> bytes:
        stdout, limit_s = self._popen.stdout, time.monotonic() + _READY_TIMEOUT_S
        assert stdout is not None
        while not (readable := select.select([stdout], [], [], _LOOK_S)[0]) and time.monotonic() < limit_s:
            if stopped():
                raise LaunchStopped
        line = stdout.readline() if readable else b""
        if not line:
            raise WorldError(self.obituary())
        return line

    def tell(self, line: bytes) -> None:
        """Say something on its stdin; one that has died is found by others."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line)
            self._popen.stdin.flush()

    def alive(self) -> bool:
        return self._popen.poll() is None

    def obituary(self) -> str:
        """Why it is not there: the last line it wrote to stderr."""
        try:
            self._popen.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"the emulator's {_name(self.role)} did not get ready in {_READY_TIMEOUT_S:g} s"
        self._errors.seek(0)
        lines = self._errors.read()[-4096:].decode("utf-8", "replace").strip().splitlines() or ["nothing on stderr"]
        return f"the emulator's {_name(self.role)} ended (exit {self._popen.returncode}): {printable(lines[-1])}"

    def end(self) -> None:
        """Terminate and wait."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                stream.close()
        if self.alive():
            self._popen.terminate()
        try:
            self._popen.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._errors.close()


def _name(role: str) -> str:
    return {"router": "router", "a": "cluster A", "b": "cluster B"}[role]


def environment() -> dict[str, str]:
    """The parent's, with the package importable as here."""
    from pddbench import __file__ as package

    root = os.path.dirname(os.path.dirname(os.path.abspath(package)))  # noqa: PTH100, PTH120
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def _listener(spec: EmulatorSpec) -> socket.socket:
    """The router's listening socket. Raises `InputError` when the address cannot be had."""
    where = f"{spec.host}:{spec.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            spec.host, spec.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)  # here, where an address in use is the user's to know of
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {where} is in use: choose another one, or 0 for any free port") from None
        raise InputError(f"cannot listen on {where}: {printable(error.strerror or str(error))}") from None
    return listener


def _open_link(spec: EmulatorSpec, stopped: Callable[[], bool]) -> Guard | None:
    """The link of an arm that has one with packets, measured idle, and watched from now on."""
    if spec.arm not in CROSSES or spec.wan_backend not in PACKET_BACKENDS:
        return None
    from pddbench.wan.guard import Guard
    from pddbench.wan.openlink import open_shapes
    from pddbench.wan.shape import wire_shape

    shape = wire_shape(spec.link, spec.kv_scale, spec.speed)
    guard = Guard(open_shapes(shape, shape, spec.wan_backend))
    try:
        guard.begin(stopped)
    except BaseException:
        guard.close()
        raise
    return guard


class Deployment:
    """A running emulated deployment; a context manager that ends it."""

    def __init__(self, spec: EmulatorSpec, stopped: Callable[[], bool]) -> None:
        self.spec = spec
        self._processes: list[_Process] = []
        self._facts: dict[str, Any] = {}
        listener = _listener(spec)
        self.port: int = listener.getsockname()[1]
        self.guard: Guard | None = None
        try:
            self.guard = _open_link(spec, stopped)
            self._start(listener.fileno(), stopped)
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()

    def _start(self, listener: int, stopped: Callable[[], bool]) -> None:
        """All processes at once; then each is told of those before it."""
        link = self.guard.link if self.guard else None
        sides = {"b": link.side_b, "a": link.side_a, "router": link.side_a} if link else {}
        roles = ["a", "router"] if self.spec.arm == "baseline" else ["b", "a", "router"]
        for role in roles:
            self._processes.append(_Process(role, sides.get(role), [listener] if role == "router" else []))
        peers: dict[str, tuple[str, int]] = {}
        epoch_ns = time.monotonic_ns()
        for process in self._processes:
            host = sides["b"].address if sides and process.role == "b" else "127.0.0.1"
            ready = process.start(ProcessSpec(self.spec, epoch_ns, dict(peers), host, listener), stopped)
            peers[process.role] = (host, ready.pop("port"))
            self._facts |= ready

    @property
    def url(self) -> str:
        """Where the router listens, without `/v1`."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.spec.host, self.spec.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The OpenAI base URL."""
        return f"{self.url}/v1"

    @property
    def info(self) -> dict[str, Any]:
        """What it is, for a manifest."""
        spec: dict[str, Any] = msgspec.to_builtins(self.spec)
        pids = {process.role: process.pid for process in self._processes}
        return spec | {"base_url": self.base_url, "port": self.port, "pids": pids} | self._facts

    @property
    def link_problems(self) -> list[str]:
        """In what the link is not as asked, as far as known by now."""
        return self.guard.problems if self.guard else []

    def begin_events(self, t0_ns: int) -> None:
        """The run's zero (CLOCK_MONOTONIC): from there on the link changes by its schedule. Does not wait."""
        if self.guard is not None:
            self.guard.begin_schedule(self.spec.link_steps, t0_ns / 1e9, self.spec.speed)
        elif self.spec.link_steps:
            for process in self._processes:
                if process.role != "router":
                    process.tell(b"%d\n" % t0_ns)

    def link_changes(self, figures: Sequence[tuple[str, str, float]]) -> list[dict[str, Any]]:
        """How the link has changed, in experiment seconds after the run's zero; `figures`: of `stats`."""
        if self.guard is not None:
            return self.guard.changes
        count = int(sum(value for _, metric, value in figures if metric == "link_changes"))
        return [applied_on_time(step) for step in self.spec.link_steps[:count]]

    def end_link(self, load: bool = True) -> dict[str, Any] | None:
        """Measure the link again, and all that is known of it; None without packets."""
        if self.guard is None:
            return None
        self.guard.end(load)
        wire = {name: getattr(self.spec, name) for name in ("kv_scale", "speed")}
        return self.guard.facts() | wire | self._facts

    def check(self) -> None:
        """Raise `WorldError` when a part of it has died."""
        if self.guard is not None and self.guard.dead:
            raise WorldError(f"the WAN link is gone: {self.guard.problems[-1]}")
        dead = self._obituaries()
        if dead and all(text.endswith("was lost") for text in dead):
            time.sleep(0.2)  # a process closes its sockets a moment before it counts as ended
            dead = self._obituaries()
        if dead:  # the others end because of the first: its own words say why
            raise WorldError(next((text for text in dead if not text.endswith("was lost")), dead[0]))

    def _obituaries(self) -> list[str]:
        return [process.obituary() for process in self._processes if not process.alive()]

    def stats(self) -> list[tuple[str, str, float]]:
        """(process, metric, value) of all its processes; lateness in wall nanoseconds. Raises `WorldError`."""
        self.check()
        try:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy before our own processes
            with direct.open(f"{self.url}/stats", timeout=10) as reply:
                figures: dict[str, dict[str, float]] = json.load(reply)
        except OSError as error:
            self.check()
            raise WorldError(f"the emulator at {self.url} does not answer: {error}") from error
        return [(process, metric, value) for process, own in figures.items() for metric, value in own.items()]

    def close(self) -> None:
        """End all its processes and wait for them, then take the link down."""
        for process in reversed(self._processes):
            process.end()
        self._processes = []
        if self.guard is not None:
            self.guard.close()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def launch(spec: EmulatorSpec, stopped: Callable[[], bool] = lambda: False) -> Deployment:
    """Start a deployment and wait until it serves. Raises `InputError` (port) or `WorldError` (a process died).

    Ends what it has started and raises `LaunchStopped` when `stopped` says that nobody waits for it any more.
    """
    return Deployment(spec, stopped)
