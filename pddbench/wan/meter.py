"""Measuring from inside a link: a server in side B, and what side A finds out with it."""

from __future__ import annotations

import json
import select
import subprocess
from types import TracebackType
from typing import Any

from pddbench.errors import WorldError
from pddbench.text import printable
from pddbench.wan.namespaces import CONGESTION_CONTROL, Side, program

_READY_TIMEOUT_S = 20.0
_GRACE_S = 30.0
_END_TIMEOUT_S = 5.0


class Meter:
    """A context manager: measures from `near` to a server of ours in `far`."""

    def __init__(self, near: Side, far: Side) -> None:
        self._near, self._far = near, far
        self._server = far.popen(
            program("measure", "serve", far.address),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            self._port = self._first_line()
            if not self._port:
                raise WorldError(f"cannot measure the link: no server came up in side {far.name}{self._last_words()}")
        except BaseException:
            self.close()
            raise

    def _first_line(self) -> str:
        stdout = self._server.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], _READY_TIMEOUT_S)
        return stdout.readline().decode().strip() if readable else ""

    def _last_words(self) -> str:
        assert self._server.stderr is not None
        self._server.kill()
        lines = self._server.stderr.read().decode(errors="replace").strip().splitlines()
        return f": {printable(lines[-1])}" if lines else ""

    def measure(self, what: str, *arguments: object, seconds: float = 0.0) -> dict[str, Any]:
        """One of the measures of `wan.inside.measure`, which takes about `seconds`."""
        command = program("measure", what, self._far.address, self._port, *map(str, arguments))
        try:
            done = self._near.run(command, timeout_s=seconds + _GRACE_S)
        except subprocess.TimeoutExpired:
            raise WorldError(f"cannot measure the link: {what} did not end within {seconds + _GRACE_S:.0f} s") from None
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
            raise WorldError(f"cannot measure the link: {what}: {printable(last[0])}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def rtt_ms(self, count: int, timeout_s: float) -> list[float]:
        """Round-trip times of those datagrams that came back."""
        return self.trips_ms(count, timeout_s)[0]

    def trips_ms(self, count: int, timeout_s: float) -> tuple[list[float], list[float]]:
        """Of those datagrams that came back: the round trips, and of each the way there (one clock for both sides)."""
        found = self.measure("rtt", count, timeout_s, seconds=count * timeout_s)
        return found["rtt_ms"], found["there_ms"]

    def throughput(self, warm_s: float, measured_s: float) -> tuple[float, str]:
        """Mbit/s of payload of one TCP flow at its receiver, and the congestion control it had."""
        found = self.measure("load", warm_s, measured_s, CONGESTION_CONTROL[0], seconds=warm_s + measured_s)
        mbit = found["bytes"] * 8 / found["seconds"] / 1e6 if found["seconds"] else 0.0
        return mbit, found["congestion_control"]

    def watch(self, every_s: float, count: int) -> subprocess.Popen[bytes]:
        """A process that prints a line of JSON (`rtt_ms`, `lost`) every so often, until it is killed or we are gone."""
        command = program("measure", "watch", self._far.address, self._port, str(every_s), str(count))
        return self._near.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        """End the server."""
        for stream in (self._server.stdin, self._server.stdout, self._server.stderr):
            assert stream is not None
            stream.close()
        try:
            self._server.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
