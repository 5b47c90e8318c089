"""Starting and ending a miniature deployment: model, link, servers, and our processes beside them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
import time
import urllib.error
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import msgspec

from pddbench.deploy import children
from pddbench.deploy.children import Child
from pddbench.deploy.gguf import write_tiny_llama
from pddbench.deploy.minipdd.spec import ROLES, SHAPE, MiniSpec, Part
from pddbench.errors import InputError, WorldError
from pddbench.scratch import scratch_folder
from pddbench.text import printable
from pddbench.wan.guard import Guard
from pddbench.wan.namespaces import Side
from pddbench.wan.openlink import WanLink, open_link

_ANSWER_TIMEOUT_S = 600.0  # one answer again by the single process, on a busy host


def require_engine() -> None:
    """`InputError` where llama.cpp's wheel is missing."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise InputError("engine 'llamacpp' needs the xllamacpp package: pip install 'pddbench[live]'")


class MiniDeployment:
    """A running miniature deployment; a context manager that ends it and takes the link down."""

    def __init__(self, spec: MiniSpec, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start it and wait until it serves; ends what was started, and raises `LaunchStopped`, when `stopped()`."""
        require_engine()
        self.spec, self._stopped = spec, stopped
        self._stack = contextlib.ExitStack()
        self._processes: list[Child] = []
        self._single: str | None = None
        self.link: WanLink | None = None
        self._guard: Guard | None = None
        self._token = secrets.token_hex(16)
        try:
            self._listener = self._stack.enter_context(children.listener(spec.host, spec.port))
            self.port: int = self._listener.getsockname()[1]
            self._folder = self._stack.enter_context(scratch_folder("mini"))
            self._model = self._make_model()
            if spec.kind != "baseline" and spec.wan_backend != "model":
                self.link = open_link(spec.link, spec.wan_backend)
                self._guard = Guard(self.link)
                self._stack.callback(self._guard.close)
                self._guard.begin()
            self._start()
        except BaseException:
            self.close()
            raise

    def _make_model(self) -> str:
        if self.spec.gguf is not None:
            return self.spec.gguf
        path = self._folder / "model.gguf"
        write_tiny_llama(path, msgspec.structs.replace(SHAPE, seed=self.spec.seed))
        return str(path)

    def _start(self) -> None:
        """Servers first, all at once; then cluster B; then cluster A, which the clients reach."""
        roles = ROLES[self.spec.kind]
        in_b = () if self.spec.kind == "baseline" else roles[-1:]
        for name in ("a", "b"):
            (self._folder / name).mkdir()
        engines = {role: self._engine(role, "b" if role in in_b else "a", self.spec.slots) for role in roles}
        urls = {role: engine.first_line(self._stopped) for role, engine in engines.items()}
        epoch_ns = time.monotonic_ns()
        peer = None
        if in_b:
            listen = "127.0.0.1" if self.link is None else self.link.side_b.address
            part = Part(
                spec=self.spec, engines={role: urls[role] for role in in_b}, folder=str(self._folder / "b"),
                epoch_ns=epoch_ns, listen=listen,
            )  # fmt: skip
            peer = (listen, self._ours("b", part))
        part = Part(
            spec=self.spec, engines={role: url for role, url in urls.items() if role not in in_b},
            folder=str(self._folder / "a"), epoch_ns=epoch_ns, peer=peer, http_fd=self._listener.fileno(),
            token=self._token,
        )  # fmt: skip
        self._ours("a", part, [self._listener.fileno()])

    def _side(self, name: str) -> Side | None:
        return None if self.link is None else {"a": self.link.side_a, "b": self.link.side_b}[name]

    def _begin(self, name: str, argv: Sequence[str], side: str, pass_fds: Sequence[int] = ()) -> Child:
        process = Child(name, argv, self._side(side), pass_fds)
        self._processes.append(process)
        return process

    def _engine(self, role: str, side: str, slots: int) -> Child:
        spec = self.spec
        argv = [
            "pddbench.deploy.minipdd.engine", self._model, "--slots", str(slots), "--context-tokens",
            str(spec.context_tokens), "--threads", str(spec.threads), "--slot-folder", str(self._folder / side),
            "--kv-type", spec.kv_type,
        ]  # fmt: skip
        return self._begin(f"llama.cpp's server for {role}", argv + ["--flash-attention"] * spec.flash_attention, side)

    def _ours(self, name: str, part: Part, pass_fds: Sequence[int] = ()) -> int:
        """Start one of our processes; the port it listens on."""
        process = self._begin(f"cluster {name.upper()}", ["pddbench.deploy.minipdd.process", name], name, pass_fds)
        process.tell(msgspec.json.encode(part))
        port: int = json.loads(process.first_line(self._stopped))["port"]
        return port

    @property
    def url(self) -> str:
        """Where the front listens, without `/v1`."""
        return children.url_of(self.spec.host, self.port)

    @property
    def base_url(self) -> str:
        """The OpenAI base URL."""
        return f"{self.url}/v1"

    @property
    def info(self) -> dict[str, Any]:
        """What it is, for a manifest; `link`: what is in force and what was measured, None without packets."""
        spec: dict[str, Any] = msgspec.to_builtins(self.spec)
        return spec | {
            "engine": "llamacpp",
            "base_url": self.base_url,
            "folder": str(self._folder),
            "promises_exactness": self.spec.promises_exactness,
            "why_inexact": self.spec.why_inexact,
            "link_facts": None if self.link is None else self.link.facts,
            "pids": {process.name: process.pid for process in self._processes},
        }

    @property
    def link_problems(self) -> list[str]:
        """In what the link is not as asked, as far as known by now."""
        return self._guard.problems if self._guard else []

    @property
    def link_words(self) -> str:
        """What was measured before the load, in words; empty without packets."""
        if self.link is None:
            return ""
        if self.link_problems:
            return f"NOT AS ASKED: {'; '.join(self.link_problems)}"
        found = self.link.verifications[-1].findings
        return "measured " + ", ".join(f"{each.name} {each.found:.4g} {each.unit}" for each in found)

    def begin_events(self, t0_ns: int) -> None:
        """The run's zero (CLOCK_MONOTONIC): from there on the link changes by its schedule. Does not wait."""
        if self._guard is not None:
            self._guard.begin_schedule(self.spec.link_steps, t0_ns / 1e9)

    def link_changes(self, _: object = None) -> list[dict[str, Any]]:
        """How the link has changed, in seconds after the run's zero."""
        return self._guard.changes if self._guard is not None else []

    def end_link(self, load: bool = True) -> dict[str, Any] | None:
        """Measure the link again (`load` False: without filling it), and all that is known of it; None without
        packets."""  # fmt: skip
        if self._guard is None:
            return None
        self._guard.end(load)
        return self._guard.facts()

    def check(self) -> None:
        """Raise `WorldError` when a part of it has died."""
        children.check_alive(self._processes, self._guard)

    def stats(self) -> list[tuple[str, str, float]]:
        """(process, metric, value): what the front counted."""
        figures: dict[str, dict[str, float]] = self._ask("/stats")
        return [(process, metric, float(value)) for process, own in figures.items() for metric, value in own.items()]

    def exactness(self, stopped: Callable[[], bool] = lambda: False) -> list[tuple[str, str, float]]:
        """Ask every answer so far again, of a single server that does nothing else; rows as of `stats`.

        `replies`, `differing`, both also by mode of hand-off; `not_kept`: answers beyond what was remembered, or left
        when `stopped()`; `first_difference_token`: least index at which one differs, -1 for none.
        """
        if self._single is None:
            self._single = self._engine("the check of its tokens", "a", 1).first_line()
        found: dict[str, float] = {"waiting": 1.0}
        while found["waiting"]:
            found = self._ask("/exactness", {"single": self._single, "token": self._token})
            if stopped():
                break
        found["not_kept"] += found.pop("waiting")
        return [("exactness", metric, float(value)) for metric, value in found.items()]

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        self.check()
        data = None if body is None else json.dumps(body).encode()
        try:
            return json.loads(children.ask(self.url + path, _ANSWER_TIMEOUT_S, data))
        except urllib.error.HTTPError as error:
            said = json.loads(error.read() or b"{}").get("error", {}).get("message", error)
            raise WorldError(f"the deployment at {self.url}{path}: {printable(str(said))}") from error
        except OSError as error:
            self.check()
            raise WorldError(f"the deployment at {self.url} does not answer: {error}") from error

    def close(self) -> None:
        """End all its processes, wait for them, and take the link down."""
        for process in reversed(self._processes):
            process.end()
        self._processes = []
        self._stack.close()

    def __enter__(self) -> MiniDeployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
