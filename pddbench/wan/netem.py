"""The `netem` backend: a veth pair between the two namespaces with the kernel's own network emulator on each end.

netem works on what leaves a device, so each end delays by the one-way delay and the round trip is the sum. Everything
goes through `ip` and `tc` as lists of arguments, and is read back as JSON: what the kernel took otherwise is an error.

netem gives a packet its time when it comes, by the rate of that moment: what queued at a low rate would leave at it
long after the rate was raised again, and all that comes later behind it. So a line that becomes slower is slowed by a
token bucket (tbf) above netem, which holds back what is due by then; netem keeps the highest rate it had. Until the
first change the bucket is so wide that it holds back nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pddbench.errors import WorldError
from pddbench.wan.device import NAME, Unavailable, attempt, command, json_command
from pddbench.wan.namespaces import Namespaces, Side
from pddbench.wan.shape import Shape, offload

_LINE, _INNER, _HANDLE = "1d:", "1d:1", "1e:"  # ours, so that a qdisc that is not is seen
_MAC = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b"}
_QUEUE_PACKETS = "20000"
_GSO_SEGMENTS = 65535  # what the kernel gives a veth; 1: no super-packets
_TOLERANCE = 1e-3  # percentages are 32-bit fractions, times are in ticks of 64 ns
_WIDE_MBIT = 100_000.0  # holds back nothing that a veth pair can carry
_BURST_S = 0.02  # a bucket that is looked at later than this loses rate for good; a busy machine is milliseconds late
_HEADER_BYTES = 64  # Ethernet's 14, and what a burst loses as a time
_BURST_SLACK = 0.01  # a burst is kept as a time, in ticks of 64 ns
_SUPER_PACKET_BYTES = 70_000  # 64 KB and the headers of its segments; tbf never sends what is longer than its burst
_UNUSED_LIMIT_BYTES = "1000000"  # tbf asks for one for a queue of its own; netem's counts


def tool(name: str) -> str:
    """Path of `ip` or `tc`, also where a user's PATH lacks the sbin folders."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if found is None:
        raise Unavailable("netem", f"no {name!r} on this host (Debian and Ubuntu: apt-get install iproute2)")
    return found


def netem_arguments(shape: Shape) -> list[str]:
    """The words after `netem` for a direction; jitter has its distribution, and only comes with a rate (`Shape`)."""
    words = ["limit", str(shape.limit_packets), "delay", f"{shape.delay_ms * 1e3:.0f}us"]
    if shape.jitter_ms:
        words += [f"{shape.jitter_ms * 1e3:.0f}us"]
        words += ["distribution", shape.distribution] if shape.distribution != "uniform" else []
    if shape.gilbert:
        g = shape.gilbert
        words += ["loss", "gemodel"]
        words += [f"{x:.6g}%" for x in (g.to_bad_pct, g.to_good_pct, g.bad_loss_pct, g.good_loss_pct)]
    elif shape.loss_pct:
        words += ["loss", "random", f"{shape.loss_pct:.6g}%"]
    if shape.rate_mbit:
        words += ["rate", f"{shape.rate_mbit * 1e6:.0f}bit"]
    return words


def expected_options(shape: Shape) -> dict[str, float]:
    """What `tc -j` must read back, flattened: seconds, bytes a second, shares."""
    expected = {
        "limit": shape.limit_packets,
        "delay.delay": shape.delay_ms / 1e3,
        "delay.jitter": shape.jitter_ms / 1e3,
    }
    expected["rate.rate"] = (shape.rate_mbit or 0.0) * 1e6 / 8
    expected["loss-random.loss"] = shape.loss_pct / 100
    if shape.gilbert:
        g = shape.gilbert
        names = {"p": g.to_bad_pct, "r": g.to_good_pct, "1-h": g.bad_loss_pct, "1-k": g.good_loss_pct}
        expected |= {f"loss-gemodel.{name}": value / 100 for name, value in names.items()}
    return expected


_NEVER = ("duplicate", "reorder", "corrupt", "slot", "loss-state")
_NOTHING = dict.fromkeys(("rate.packetoverhead", "rate.cellsize", "delay.correlation", "loss-random.correlation",
                          "loss-gemodel.p"), 0.0)  # fmt: skip


def mismatches(shape: Shape, options: dict[str, Any]) -> list[str]:
    """Each figure that netem reads back otherwise than asked, in words."""
    flat = {
        f"{key}.{inner}" if inner else key: number
        for key, value in options.items()
        for inner, number in (value.items() if isinstance(value, dict) else [("", value)])
    }
    wrong = [f"there is a {name}" for name in _NEVER if name in options]
    for name, wanted in (_NOTHING | expected_options(shape)).items():
        found = flat.get(name, 0.0)
        if abs(float(found) - wanted) > _TOLERANCE * max(abs(wanted), 1e-3):
            wrong.append(f"{name} is {found}, not {wanted:g}")
    return wrong


class _Line(NamedTuple):
    """One direction's rates: netem's own (None: no rate), the token bucket's, and the longest packet it may hold."""

    netem_mbit: float | None
    mbit: float
    packet_bytes: int

    @classmethod
    def new(cls, shape: Shape) -> _Line:
        """Before any change: all by netem."""
        return cls(shape.rate_mbit, _WIDE_MBIT, _longest_bytes(shape))

    def changed(self, before: Shape, shape: Shape) -> _Line:
        """After one: netem's rate never falls, the bucket has the rate that is wanted."""
        longest = max(self.packet_bytes, _longest_bytes(shape))
        if shape.rate_mbit is None or before.rate_mbit == shape.rate_mbit:
            return self._replace(packet_bytes=longest)
        return _Line(max(shape.rate_mbit, self.netem_mbit or 0.0), shape.rate_mbit, longest)

    def inner(self, shape: Shape) -> Shape:
        """What netem is given."""
        return msgspec.structs.replace(shape, rate_mbit=self.netem_mbit, queue_packets=shape.limit_packets)

    @property
    def burst_bytes(self) -> int:
        """What may leave at once after a pause: the longest packet, and what falls due until a late look."""
        return self.packet_bytes + round(self.mbit * 1e6 / 8 * _BURST_S)

    def arguments(self) -> list[str]:
        """The bucket in tc's words."""
        words = ["rate", f"{self.mbit * 1e6:.0f}bit", "burst", str(self.burst_bytes), "limit", _UNUSED_LIMIT_BYTES]
        return ["tbf", *words]

    def mismatches(self, options: dict[str, Any]) -> list[str]:
        """Each figure that the bucket reads back otherwise than asked, in words."""
        wrong = []
        rate, burst = options.get("rate", 0.0) * 8e-6, options.get("burst", 0)
        if abs(rate - self.mbit) > max(_TOLERANCE * self.mbit, 8e-6):
            wrong.append(f"the line's rate is {rate:g} Mbit/s, not {self.mbit:g}")
        if abs(burst - self.burst_bytes) > _BURST_SLACK * self.burst_bytes:
            wrong.append(f"the line's burst is {burst} bytes, not {self.burst_bytes}")
        return wrong + [f"the line has a {name}" for name in ("peakrate", "minburst") if name in options]


def _longest_bytes(shape: Shape) -> int:
    return _SUPER_PACKET_BYTES if offload(shape) else shape.mtu_bytes + _HEADER_BYTES


class Netem:
    """A veth pair, one end in each namespace."""

    name = "netem"

    def __init__(self, namespaces: Namespaces) -> None:
        self._sides = {"a_to_b": namespaces.a, "b_to_a": namespaces.b}
        self._shapes: dict[str, Shape] = {}
        self._lines: dict[str, _Line] = {}
        self._ip, self._tc = tool("ip"), tool("tc")
        self._connect(namespaces)

    def _connect(self, namespaces: Namespaces) -> None:
        a, b = namespaces.a, namespaces.b
        peer = ["peer", "name", NAME, "address", _MAC["b"], "netns", str(namespaces.holder_pid)]
        try:
            command(a, [self._ip, "link", "add", NAME, "address", _MAC["a"], "type", "veth", *peer])
        except WorldError as error:
            raise Unavailable(self.name, str(error)) from None
        for here, there in ((a, b), (b, a)):
            command(here, [self._ip, "link", "set", NAME, "txqueuelen", _QUEUE_PACKETS, "up"])
            command(here, [self._ip, "address", "add", f"{here.address}/32", "peer", there.address, "dev", NAME])
            # a fixed neighbour: the first packet must not wait a round trip for ARP
            neighbour = [there.address, "lladdr", _MAC[there.name], "nud", "permanent", "dev", NAME]
            command(here, [self._ip, "neighbour", "replace", *neighbour])

    def apply(self, a_to_b: Shape, b_to_a: Shape) -> None:
        """See `Backend.apply`."""
        for direction, shape in (("a_to_b", a_to_b), ("b_to_a", b_to_a)):
            if self._shapes.get(direction) != shape:
                before, line = self._shapes.pop(direction, None), self._lines.pop(direction, None)
                self._lines[direction] = self._apply(self._sides[direction], shape, before, line)
                self._shapes[direction] = shape

    def _apply(self, side: Side, shape: Shape, before: Shape | None, line: _Line | None) -> _Line:
        """Delete, then add: a change keeps each figure that it does not name. Where it names all of them it is a
        change, so that what is under way stays under way."""  # fmt: skip
        if before is not None and line is not None and _same_names(before, shape):
            after = line.changed(before, shape)
            if self._change(side, (before, line), (shape, after)):
                return after
        if any(self._qdiscs(side)[:2]):
            command(side, [self._tc, "qdisc", "delete", "dev", NAME, "root"])
        after = _Line.new(shape)
        for words in self._words("add", after, shape):
            if reason := _refusal(side, words):
                raise Unavailable(self.name, reason)
        return after

    def _change(self, side: Side, before: tuple[Shape, _Line], after: tuple[Shape, _Line]) -> bool:
        """Run only what differs, as on a slow machine each command takes a while. False: it could not be changed."""
        words = [self._words("change", line, shape) for shape, line in (before, after)]
        return not any(_refusal(side, new) for old, new in zip(*words, strict=True) if old != new)

    def _words(self, word: str, line: _Line, shape: Shape) -> list[list[str]]:
        """What makes, or changes, a direction: device, token bucket, netem."""
        segments = _GSO_SEGMENTS if offload(shape) else 1
        qdisc = [self._tc, "qdisc", word, "dev", NAME]
        return [
            [self._ip, "link", "set", NAME, "mtu", str(shape.mtu_bytes), "gso_max_segs", str(segments)],
            [*qdisc, "root", "handle", _LINE, *line.arguments()],
            [*qdisc, "parent", _INNER, "handle", _HANDLE, "netem", *netem_arguments(line.inner(shape))],
        ]

    def _qdiscs(self, side: Side) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """The token bucket and the netem below it, empty where it is gone; and kinds of what is not ours."""
        listing = json_command(side, [self._tc, "-s", "-j", "qdisc", "show", "dev", NAME])
        bucket: dict[str, Any] = next((q for q in listing if q.get("root") and q.get("handle") == _LINE), {})
        inner: dict[str, Any] = next(
            (q for q in listing if q.get("parent") == _INNER and q.get("handle") == _HANDLE), {}
        )
        return bucket, inner, [str(q.get("kind")) for q in listing if q not in (bucket, inner)]

    def read_back(self) -> dict[str, Any]:
        """See `Backend.read_back`: the qdisc and the device of each end."""
        found = {}
        for direction, side in self._sides.items():
            (device,) = json_command(side, [self._ip, "-d", "-j", "link", "show", "dev", NAME])
            bucket, qdisc, others = self._qdiscs(side)
            found[direction] = {
                "line": {"kind": bucket.get("kind"), "options": bucket.get("options")},
                "kind": qdisc.get("kind"),
                "options": qdisc.get("options"),
                "others": others,
                "mtu": device.get("mtu"),
                "gso_max_segs": device.get("gso_max_segs"),
            }
        return found

    def check_unchanged(self) -> None:
        """`WorldError` when an end is not what was last applied."""
        for direction, found in self.read_back().items():
            shape, line = self._shapes[direction], self._lines[direction]
            if found["kind"] != "netem" or found["line"]["kind"] != "tbf":
                raise WorldError(f"netem is gone from side {self._sides[direction].name} of the link")
            wrong = mismatches(line.inner(shape), found["options"]) + line.mismatches(found["line"]["options"])
            wrong += [f"there is a {kind} of somebody else" for kind in found["others"]]
            if found["mtu"] != shape.mtu_bytes:
                wrong.append(f"mtu is {found['mtu']}, not {shape.mtu_bytes}")
            if not offload(shape) and found["gso_max_segs"] != 1:
                wrong.append(f"gso_max_segs is {found['gso_max_segs']}, not 1")
            if wrong:
                raise WorldError(
                    f"netem on side {self._sides[direction].name} is not what was asked: {'; '.join(wrong)}"
                )

    def counters(self) -> dict[str, dict[str, float]]:
        """See `Backend.counters`. netem has one counter for a loss and a full queue: both are in `lost`."""
        out = {}
        for direction, side in self._sides.items():
            _, qdisc, _ = self._qdiscs(side)
            out[direction] = {
                "packets": float(qdisc.get("packets", 0)),
                "bytes": float(qdisc.get("bytes", 0)),
                "lost": float(qdisc.get("drops", 0)),
                "dropped": 0.0,
                "queued_bytes": float(qdisc.get("backlog", 0)),
            }
        return out

    def close(self) -> None:
        """Nothing to do: the devices go with their namespaces."""


def _same_names(before: Shape, after: Shape) -> bool:
    """Whether all that netem keeps from before is named again: limit, delay, jitter and random loss always are."""
    return (before.rate_mbit is None or after.rate_mbit is not None) and before.distribution == after.distribution


def _refusal(side: Side, words: list[str]) -> str:
    """Run it: the first line of what was said against it, or nothing."""
    done = attempt(side, words)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.strip().splitlines() if line.strip()]
    said = repr(lines[0].removeprefix("Error: ").rstrip(".")) if lines else "nothing"
    return f"{Path(words[0]).name} says {said}"
