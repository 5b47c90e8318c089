"""Starting and ending an emulated deployment: router, cluster A and cluster B as processes of their own."""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any

import msgspec

from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.errors import InputError, WorldError
from pddbench.text import printable

_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_LOOK_S = 0.1


class LaunchStopped(Exception):
    """A signal came before the deployment was up."""


class _Process:
    """One process of a deployment; its stdin stays open, and its end is the sign to go."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "pddbench.deploy.emulator.process", role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # a Ctrl-C is for pddbench, which then ends its processes itself
            env=environment(),
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def start(self, spec: dict[str, Any], stopped: Callable[[], bool]) -> int:
        """Hand over the spec; returns the port it listens on. Raises `LaunchStopped` as soon as `stopped()`."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(msgspec.json.encode(spec) + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise WorldError(self.obituary()) from None
        ready = json.loads(self._ready_line(stopped))
        if "error" in ready:
            raise _start_error(spec["deployment"], ready)
        port: int = ready["port"]
        return port

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


def _start_error(spec: EmulatorSpec, ready: dict[str, Any]) -> Exception:
    where = f"{spec.host}:{spec.port}"
    if ready["errno"] == errno.EADDRINUSE:
        return InputError(f"port {where} is in use: choose another one, or 0 for any free port")
    return InputError(f"cannot listen on {where}: {printable(str(ready['error']))}")


class Deployment:
    """A running emulated deployment; a context manager that ends it."""

    def __init__(self, spec: EmulatorSpec, stopped: Callable[[], bool]) -> None:
        self.spec = spec
        roles = ["a", "router"] if spec.arm == "baseline" else ["b", "a", "router"]
        self._processes = [_Process(role) for role in roles]
        ports: dict[str, int] = {}
        epoch_ns = time.monotonic_ns()
        try:
            for process in self._processes:
                told = {"deployment": spec, "epoch_ns": epoch_ns, "ports": ports}
                ports[process.role] = process.start(told, stopped)
        except BaseException:
            self.close()
            raise
        self.port = ports["router"]

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
        return spec | {"base_url": self.base_url, "port": self.port, "pids": pids}

    def check(self) -> None:
        """Raise `WorldError` when a part of it has died."""
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
        """End all its processes and wait for them."""
        for process in reversed(self._processes):
            process.end()
        self._processes = []

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
