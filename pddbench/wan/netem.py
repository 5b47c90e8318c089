"""The `netem` backend: a veth pair between the two namespaces with the kernel's own network emulator on each end.

netem works on what leaves a device, so each end delays by the one-way delay and the round trip is the sum. Everything
goes through `ip` and `tc` as lists of arguments, and is read back as JSON: what the kernel took otherwise is an error.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from pddbench.errors import WorldError
from pddbench.wan.device import NAME, Unavailable, command, json_command
from pddbench.wan.namespaces import Namespaces, Side
from pddbench.wan.shape import Shape, offload

HANDLE = "1d:"  # ours, so that a qdisc that is not is seen
_MAC = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b"}
_QUEUE_PACKETS = "20000"
_GSO_SEGMENTS = 65535  # what the kernel gives a veth; 1: no super-packets
_TOLERANCE = 1e-3  # percentages are 32-bit fractions, times are in ticks of 64 ns


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


def mismatches(shape: Shape, options: dict[str, Any]) -> list[str]:
    """Each figure that netem reads back otherwise than asked, in words."""
    flat = {
        f"{key}.{inner}" if inner else key: number
        for key, value in options.items()
        for inner, number in (value.items() if isinstance(value, dict) else [("", value)])
    }
    wrong = []
    for name, wanted in expected_options(shape).items():
        found = flat.get(name, 0.0)
        if abs(float(found) - wanted) > _TOLERANCE * max(abs(wanted), 1e-3):
            wrong.append(f"{name} is {found}, not {wanted:g}")
    return wrong


class Netem:
    """A veth pair, one end in each namespace."""

    name = "netem"

    def __init__(self, namespaces: Namespaces) -> None:
        self._sides = {"a_to_b": namespaces.a, "b_to_a": namespaces.b}
        self._shapes: dict[str, Shape] = {}
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
                self._apply(self._sides[direction], shape, self._shapes.pop(direction, None))
                self._shapes[direction] = shape
        self.check_unchanged()

    def _apply(self, side: Side, shape: Shape, before: Shape | None) -> None:
        """Delete, then add: a change keeps each figure that it does not name. Where it names all of them it is a
        change, so that what is under way stays under way."""  # fmt: skip
        segments = _GSO_SEGMENTS if offload(shape) else 1
        command(side, [self._ip, "link", "set", NAME, "mtu", str(shape.mtu_bytes), "gso_max_segs", str(segments)])
        there = self._own_qdisc(side) is not None
        word = "change" if there and before is not None and _same_names(before, shape) else "add"
        if there and word == "add":
            command(side, [self._tc, "qdisc", "delete", "dev", NAME, "root"])
        put = [self._tc, "qdisc", word, "dev", NAME, "root", "handle", HANDLE, "netem", *netem_arguments(shape)]
        done = side.run(put)
        if done.returncode != 0:
            raise Unavailable(self.name, f"tc says {_sentence(done.stderr)}")

    def _own_qdisc(self, side: Side) -> dict[str, Any] | None:
        listing = json_command(side, [self._tc, "-s", "-j", "qdisc", "show", "dev", NAME])
        return next((q for q in listing if q.get("root") and q.get("handle") == HANDLE), None)

    def read_back(self) -> dict[str, Any]:
        """See `Backend.read_back`: the qdisc and the device of each end."""
        found = {}
        for direction, side in self._sides.items():
            (device,) = json_command(side, [self._ip, "-d", "-j", "link", "show", "dev", NAME])
            qdisc = self._own_qdisc(side) or {}
            found[direction] = {
                "kind": qdisc.get("kind"),
                "options": qdisc.get("options"),
                "mtu": device.get("mtu"),
                "gso_max_segs": device.get("gso_max_segs"),
            }
        return found

    def check_unchanged(self) -> None:
        """`WorldError` when an end is not what was last applied."""
        for direction, found in self.read_back().items():
            shape = self._shapes[direction]
            if found["kind"] != "netem":
                raise WorldError(f"netem is gone from side {self._sides[direction].name} of the link")
            wrong = mismatches(shape, found["options"])
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
            qdisc = self._own_qdisc(side) or {}
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


def _sentence(stderr: str) -> str:
    """The first line of what tc said, without its own prefix."""
    lines = [line.strip() for line in stderr.strip().splitlines() if line.strip()]
    return repr(lines[0].removeprefix("Error: ").rstrip(".")) if lines else "nothing"
