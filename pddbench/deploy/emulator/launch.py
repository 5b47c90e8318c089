"""Starting and ending an emulated deployment: router, cluster A and cluster B as processes of their own.

With real packets router and cluster A are in one network namespace, cluster B in another, and only the link is between
them. The router's listening socket is made here, in the host's namespace: the client's path has nothing of the WAN.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.deploy import children
from pddbench.deploy.children import Child
from pddbench.deploy.emulator.messages import RolesTold
from pddbench.deploy.emulator.node import ProcessSpec
from pddbench.deploy.emulator.spec import CROSSES, EmulatorSpec
from pddbench.errors import WorldError
from pddbench.text import printable
from pddbench.wan.backends import PACKET_BACKENDS
from pddbench.wan.steps import applied_on_time

if TYPE_CHECKING:
    from pddbench.wan.guard import Guard

_NAMES = {"router": "the emulator's router", "a": "the emulator's cluster A", "b": "the emulator's cluster B"}
_MODULE = "pddbench.deploy.emulator.process"


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

    def __init__(self, spec: EmulatorSpec, stopped: Callable[[], bool], roles: bool = False) -> None:
        self.spec, self._roles = spec, roles
        self._processes: dict[str, Child] = {}  # by role
        self._facts: dict[str, Any] = {}
        listener = children.listener(spec.host, spec.port)
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
            pass_fds = [listener] if role == "router" else []
            self._processes[role] = Child(_NAMES[role], [_MODULE, role], sides.get(role), pass_fds)
        peers: dict[str, tuple[str, int]] = {}
        epoch_ns = time.monotonic_ns()
        for role, process in self._processes.items():
            host = sides["b"].address if sides and role == "b" else "127.0.0.1"
            told = ProcessSpec(self.spec, epoch_ns, dict(peers), host, listener, self._roles)
            process.tell(msgspec.json.encode(told))
            ready: dict[str, Any] = json.loads(process.first_line(stopped))
            if "error" in ready:
                raise WorldError(f"{process.name} cannot start: {printable(str(ready['error']))}")
            peers[role] = (host, ready.pop("port"))
            self._facts |= ready

    @property
    def url(self) -> str:
        """Where the router listens, without `/v1`."""
        return children.url_of(self.spec.host, self.port)

    @property
    def base_url(self) -> str:
        """The OpenAI base URL."""
        return f"{self.url}/v1"

    @property
    def info(self) -> dict[str, Any]:
        """What it is, for a manifest."""
        spec: dict[str, Any] = msgspec.to_builtins(self.spec)
        pids = {role: process.pid for role, process in self._processes.items()}
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
            for role, process in self._processes.items():
                if role != "router":
                    process.tell(b"%d" % t0_ns)

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
        children.check_alive([*self._processes.values()], self.guard)

    def stats(self) -> list[tuple[str, str, float]]:
        """(process, metric, value) of all its processes; lateness in wall nanoseconds. Raises `WorldError`."""
        figures: dict[str, dict[str, float]] = json.loads(self._asked("stats", 10.0))
        return [(process, metric, value) for process, own in figures.items() for metric, value in own.items()]

    def roles(self) -> RolesTold:
        """What each role did for each request, if that was asked for. Raises `WorldError`."""
        return msgspec.msgpack.decode(self._asked("roles", 60.0), type=RolesTold)

    def _asked(self, path: str, timeout_s: float) -> bytes:
        """The router's answer to a question of ours."""
        self.check()
        try:
            return children.ask(f"{self.url}/{path}", timeout_s)
        except OSError as error:
            self.check()
            raise WorldError(f"the emulator at {self.url} does not answer: {error}") from error

    def close(self) -> None:
        """End all its processes and wait for them, then take the link down."""
        for process in reversed(self._processes.values()):
            process.end()
        self._processes = {}
        if self.guard is not None:
            self.guard.close()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def launch(spec: EmulatorSpec, stopped: Callable[[], bool] = lambda: False, *, roles: bool = False) -> Deployment:
    """Start a deployment and wait until it serves. Raises `InputError` (port) or `WorldError` (a process died).

    `roles`: what each role does is kept, for `Deployment.roles`.
    Ends what it has started and raises `LaunchStopped` when `stopped` says that nobody waits for it any more.
    """
    return Deployment(spec, stopped, roles)
