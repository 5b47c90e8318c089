"""Starting and ending a miniature deployment: model, link, servers, and our processes beside them."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec

from pddbench.deploy.gguf import write_tiny_llama
from pddbench.deploy.minipdd.spec import ROLES, SHAPE, MiniSpec, Part
from pddbench.errors import InputError, WorldError
from pddbench.text import printable
from pddbench.wan.guard import Guard
from pddbench.wan.namespaces import Side
from pddbench.wan.openlink import WanLink, open_link

_ROOT = Path(__file__).resolve().parents[3]
_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 600.0  # one answer again by the single process, on a busy host


def require_engine() -> None:
    """`InputError` where llama.cpp's wheel is missing."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise InputError("engine 'llamacpp' needs the xllamacpp package: pip install 'pddbench[live]'")


class _Process:
    """One process of a deployment, in a side of the link or in the host's own network (`side` None)."""

    def __init__(self, name: str, argv: Sequence[str], side: Side | None, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        start = subprocess.Popen if side is None else side.popen
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._popen: subprocess.Popen[bytes] = start(
            [sys.executable, "-m", *argv],
            pass_fds=pass_fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # a Ctrl-C is for pddbench, which then ends its processes itself
            env={**os.environ, "PYTHONPATH": path},
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def tell(self, line: bytes) -> None:
        """One line on its stdin."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `first_line` says why it has gone
            self._popen.stdin.write(line + b"\n")
            self._popen.stdin.flush()

    def first_line(self) -> str:
        """What it says when it is ready. Raises `WorldError`."""
        stdout = self._popen.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], _READY_TIMEOUT_S)
        line = stdout.readline().decode(errors="replace").strip() if readable else ""
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
            return f"{self.name} did not get ready in {_READY_TIMEOUT_S:g} s"
        self._errors.seek(0)
        lines = self._errors.read()[-4096:].decode("utf-8", "replace").strip().splitlines() or ["nothing on stderr"]
        return f"{self.name} ended (exit {self._popen.returncode}): {printable(lines[-1])}"

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


class MiniDeployment:
    """A running miniature deployment; a context manager that ends it and takes the link down."""

    def __init__(self, spec: MiniSpec) -> None:
        require_engine()
        self.spec = spec
        self._stack = contextlib.ExitStack()
        self._processes: list[_Process] = []
        self._single: str | None = None
        self.link: WanLink | None = None
        self._guard: Guard | None = None
        self._token = secrets.token_hex(16)
        try:
            self._listener = self._stack.enter_context(_listen(spec.host, spec.port))
            self.port: int = self._listener.getsockname()[1]
            self._folder = Path(tempfile.mkdtemp(prefix="pddbench-mini-"))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
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
        urls = {role: engine.first_line() for role, engine in engines.items()}
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
            rubbish=str(self._folder), token=self._token,
        )  # fmt: skip
        self._ours("a", part, [self._listener.fileno()])

    def _side(self, name: str) -> Side | None:
        return None if self.link is None else {"a": self.link.side_a, "b": self.link.side_b}[name]

    def _begin(self, name: str, argv: Sequence[str], side: str, pass_fds: Sequence[int] = ()) -> _Process:
        process = _Process(name, argv, self._side(side), pass_fds)
        self._processes.append(process)
        return process

    def _engine(self, role: str, side: str, slots: int) -> _Process:
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
        port: int = json.loads(process.first_line())["port"]
        return port

    @property
    def url(self) -> str:
        """Where the front listens, without `/v1`."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.spec.host, self.spec.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

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
        if self._guard is not None and self._guard.dead:
            raise WorldError(f"the WAN link is gone: {self._guard.problems[-1]}")
        dead = [process.obituary() for process in self._processes if not process.alive()]
        if dead:  # the others end because of the first: its own words say why
            raise WorldError(next((text for text in dead if not text.endswith("was lost")), dead[0]))

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
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy before our own processes
            with direct.open(urllib.request.Request(self.url + path, data), timeout=_ANSWER_TIMEOUT_S) as reply:
                return json.load(reply)
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


def _listen(host: str, port: int) -> socket.socket:
    """A socket of the host's own network, which cluster A inherits: clients do not come over the link."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {host}:{port} is in use: choose another one, or 0 for any free port") from None
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
