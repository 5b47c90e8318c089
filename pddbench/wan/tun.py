"""The `tun` backend: user-space packets between two TUN devices, with the kernel's real TCP on both sides.

For kernels without netem. One process of ours (`wan.inside.emulator`, in C if that compiles) moves every packet. At
1 Gbit/s and above, without loss, the kernel's segmentation offload is on: it moves up to 64 KB at a time. Below, such a
super-packet would hold the line for more than half a millisecond, and a loss would hit all of it, so it is off.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from pathlib import Path
from typing import Any

from pddbench.errors import WorldError
from pddbench.scratch import scratch_folder
from pddbench.text import printable
from pddbench.wan.compiler import compile_emulator
from pddbench.wan.device import NAME, Unavailable
from pddbench.wan.namespaces import Namespaces, program
from pddbench.wan.shape import Shape, offload

_DIRECTIONS = ("a_to_b", "b_to_a")
_COUNTS = ("packets", "bytes", "lost", "dropped", "queued_bytes", "late_sum_ns", "late_max_ns")
_ANSWER_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 3.0


def set_line(direction: int, shape: Shape) -> str:
    """The control line (see `emulator.c`) that makes a direction so."""
    g = shape.gilbert
    loss = (g.to_bad_pct, g.to_good_pct, g.bad_loss_pct, g.good_loss_pct) if g else (0.0, 100.0, 0.0, shape.loss_pct)
    shares = " ".join(f"{percent / 100:.9g}" for percent in loss)
    delay_ns, jitter_ns = round(shape.delay_ms * 1e6), round(shape.jitter_ms * 1e6)
    bits = (shape.rate_mbit or 0.0) * 1e6
    limit_bytes = shape.limit_packets * shape.mtu_bytes
    normal = int(shape.distribution == "normal")
    return f"set {direction} {delay_ns} {jitter_ns} {normal} {bits:.0f} {shares} {limit_bytes} {int(offload(shape))}"


class Tun:
    """A TUN device in each namespace and the process between them."""

    name = "tun"

    def __init__(self, namespaces: Namespaces, mtu_bytes: int, seed: int = 1, implementation: str = "auto") -> None:
        """`implementation`: auto (C if it compiles), c or python."""
        self._shapes: dict[str, Shape] = {}
        self._asking = threading.Lock()
        self._seed, self._mtu_bytes = seed, mtu_bytes
        with scratch_folder("tun") as folder:  # a running program needs no name
            binary, made_by = (None, "asked for") if implementation == "python" else compile_emulator(folder)
            if binary is None and implementation == "c":
                raise Unavailable(self.name, made_by)
            self.emulator = f"C, by {made_by}" if binary else f"Python ({made_by})"
            self._popen = self._start(namespaces, binary)

    def _start(self, namespaces: Namespaces, binary: Path | None) -> subprocess.Popen[bytes]:
        a, b = namespaces.a, namespaces.b
        user_fd, net_a = a.enter_arguments
        words = [user_fd, net_a, str(b.net_fd), NAME, str(self._mtu_bytes), a.address, b.address, str(self._seed)]
        popen = subprocess.Popen(
            program("emulator", *words, *([str(binary)] if binary else [])),
            stdin=subprocess.PIPE,  # its end, also by our death, is the sign to go
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(*a.fds, b.net_fd),
            start_new_session=True,
        )
        self._popen = popen
        try:
            answer = self._read_line()
            if answer.startswith("error"):
                reason = printable(answer.removeprefix("error "))
                right = " (allow it to be opened, chmod 666, or run as root)" if "Permission denied" in reason else ""
                raise Unavailable(self.name, f"the kernel says {reason!r}{right}")
            self._ask("stats")  # the compiled program has taken over: its file may go
        except BaseException:
            self.close()
            raise
        return popen

    @property
    def pid(self) -> int:
        """The process that moves the packets."""
        return self._popen.pid

    def _read_line(self) -> str:
        stdout = self._popen.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], _ANSWER_TIMEOUT_S)
        line = stdout.readline() if readable else b""
        if not line:
            raise WorldError("the TUN emulator ended" if readable else "the TUN emulator does not answer")
        return line.decode().strip()

    def _ask(self, line: str) -> str:
        stdin = self._popen.stdin
        assert stdin is not None
        with self._asking:  # a guard asks from a thread of its own
            try:
                stdin.write(line.encode() + b"\n")
                stdin.flush()
            except BrokenPipeError:
                raise WorldError("the TUN emulator ended") from None
            return self._read_line()

    def apply(self, a_to_b: Shape, b_to_a: Shape) -> None:
        """See `Backend.apply`."""
        for index, (direction, shape) in enumerate(zip(_DIRECTIONS, (a_to_b, b_to_a), strict=True)):
            if self._shapes.get(direction) != shape:
                answer = self._ask(set_line(index, shape))
                if answer != "ok":
                    raise WorldError(f"the TUN emulator refused a direction's figures: {printable(answer)}")
                self._shapes[direction] = shape

    def read_back(self) -> dict[str, Any]:
        """See `Backend.read_back`: here what our own process was given and acknowledged."""
        return {
            direction: {"kind": "tun", "set": set_line(index, self._shapes[direction]), "mtu": self._mtu_bytes,
                        "offload": offload(self._shapes[direction]), "nice": os.getpriority(os.PRIO_PROCESS, self.pid)}
            for index, direction in enumerate(_DIRECTIONS)
        }  # fmt: skip

    def check_unchanged(self) -> None:
        """`WorldError` when the process is gone; nobody else can change its figures."""
        self._ask("stats")

    def counters(self) -> dict[str, dict[str, float]]:
        """See `Backend.counters`; also how late packets were delivered."""
        numbers = [float(word) for word in self._ask("stats").split()]
        size = len(_COUNTS)
        return {
            direction: dict(zip(_COUNTS, numbers[i * size : (i + 1) * size], strict=True))
            for i, direction in enumerate(_DIRECTIONS)
        }

    def cpu_s(self) -> float:
        """CPU seconds that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process, and with it both devices."""
        popen = self._popen
        assert popen.stdin is not None and popen.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, and a line to it was not
            popen.stdin.close()
        try:
            popen.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        popen.stdout.close()
