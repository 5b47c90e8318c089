"""Shaping a real device for two real machines: only traffic to one destination, and gone when pddbench is.

At the device's root an HTB whose unclassified packets pass straight through, and one class for the destination with the
kernel's netem in it (or, when only a rate is asked, HTB's own rate: that works without netem). Each machine delays what
it sends; where only one can be touched, incoming packets are redirected through an `ifb` device and delayed there.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from pddbench.errors import InputError, WorldError
from pddbench.wan.destination import Destination, matches
from pddbench.wan.inside.keeper import CLOSED
from pddbench.wan.inside.undo import IFB_PREFIX, ROOT_HANDLE, Refused, forget, listed, network_namespace, undo
from pddbench.wan.inside.undo import run as command
from pddbench.wan.namespaces import program
from pddbench.wan.netem import mismatches, netem_arguments, tool
from pddbench.wan.shape import Shape

JOURNALS = Path("/run/pddbench/wan")
_NETEM_HANDLE, _CLASS = "7dd1:", f"{ROOT_HANDLE}1"
_FAST_BIT = "100000000000"  # HTB's own rate where netem has the rate, or there is none
_TICKS_PER_S = 100  # the slowest kernel timer: a burst must last until the next tick
_QUANTUM_BYTES = "60000"


class Applied(msgspec.Struct, frozen=True):
    """A journal: all that is needed to show, check and undo the shaping of one device."""

    dev: str
    ifindex: int
    netns: int
    ip: str
    tc: str
    to: list[Destination]
    shape: Shape
    profile: str
    since_utc: str
    pid: int
    ifb: str | None = None
    gso_max_segs: int | None = None  # what it was, where a loss needed 1

    @property
    def path(self) -> Path:
        """Its file."""
        return JOURNALS / f"{self.netns}.{self.dev}.json"


def examine(dev: str, to: list[Destination], *, ingress: bool, i_know: bool) -> dict[str, Any]:
    """The device, as `ip` lists it. Raises `InputError` when it must not, or cannot, be touched."""
    ip, tc = tool("ip"), tool("tc")
    try:
        links = {link["ifname"]: link for link in listed([ip, "-d", "-j", "link", "show"])}
        if dev not in links:
            raise InputError(f"--dev {dev!r}: no such device here: {', '.join(sorted(links))}")
        if "LOOPBACK" in links[dev].get("flags", []) and not i_know:
            raise InputError(f"--dev {dev} carries what this machine says to itself: add --i-know to shape it")
        _check_routes(ip, dev, to, i_know)
        rows = listed([tc, "-j", "qdisc", "show", "dev", dev])
    except Refused as error:
        raise InputError(f"--dev {dev}: cannot be examined, so it is not touched: {error}") from None
    for row in rows:
        if row.get("handle") == ROOT_HANDLE:
            raise InputError(f"{dev} is shaped by pddbench already: `pddbench wan clear --dev {dev}` first")
        foreign = row.get("root") and row.get("handle") != "0:"  # 0: is the kernel's own
        if foreign or (ingress and row.get("kind") in ("ingress", "clsact")):
            raise InputError(
                f"{dev} has a qdisc that is not ours ({row.get('kind')} {row.get('handle')}): it would be lost, so "
                "pddbench does not touch this device"
            )
    found: dict[str, Any] = links[dev]
    return found


def _check_routes(ip: str, dev: str, to: list[Destination], i_know: bool) -> None:
    """A wrong filter on the way to everybody, or on one's own login, is a lost machine."""
    if i_know:
        return
    for family in ("-4", "-6"):
        for route in listed([ip, "-j", family, "route", "show", "default"]):
            if dev in (route.get("dev"), *(hop.get("dev") for hop in route.get("nexthops", []))):
                raise InputError(f"--dev {dev} carries the default route: add --i-know if it shall be shaped")
    client = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    if client and any(each.holds(client) for each in to if each.version == (6 if ":" in client else 4)):
        raise InputError(f"--to holds {client}, from where you are logged in: add --i-know if that shall be slowed")


def plan(dev: str, to: list[Destination], shape: Shape, profile: str, *, ingress: bool, i_know: bool) -> Applied:
    """What would be done, after all checks. Raises `InputError`."""
    link = examine(dev, to, ingress=ingress, i_know=i_know)
    if ingress and shape.loss_share:
        raise InputError(
            "--ingress with loss: what comes in is put together to super-packets before it can be lost; apply the loss "
            "on the other machine, to what it sends"
        )
    return Applied(
        dev=dev,
        ifindex=link["ifindex"],
        netns=network_namespace(),
        ip=tool("ip"),
        tc=tool("tc"),
        to=to,
        shape=shape,
        profile=profile,
        since_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        pid=os.getpid(),
        ifb=f"{IFB_PREFIX}{link['ifindex']}" if ingress else None,
        gso_max_segs=link.get("gso_max_segs") if shape.loss_share else None,
    )


def commands(applied: Applied) -> list[list[str]]:
    """Everything that is run to apply it, in order."""
    ip, tc, dev, shape = applied.ip, applied.tc, applied.dev, applied.shape
    out = [[ip, "link", "set", dev, "gso_max_segs", "1"]] if applied.gso_max_segs else []
    out += _tree(tc, dev, shape)
    for each in applied.to:
        out += [_filter(tc, dev, ROOT_HANDLE, each, words, ["flowid", _CLASS]) for words in matches(each, "dst")]
    if applied.ifb:
        out += [[ip, "link", "add", applied.ifb, "type", "ifb"], [ip, "link", "set", applied.ifb, "up"]]
        out += _tree(tc, applied.ifb, shape, default="1")
        out.append([tc, "qdisc", "add", "dev", dev, "ingress"])
        redirect = ["action", "mirred", "egress", "redirect", "dev", applied.ifb]
        for each in applied.to:
            out += [_filter(tc, dev, "ffff:", each, words, redirect) for words in matches(each, "src")]
    return out


def uses_netem(shape: Shape) -> bool:
    """Whether more than a rate is asked."""
    return bool(shape.delay_ms or shape.jitter_ms or shape.loss_share)


def _tree(tc: str, dev: str, shape: Shape, default: str = "0") -> list[list[str]]:
    """HTB with one class; what the filters do not pick (`default` 0) passes beside it, at the device's own speed."""
    netem = uses_netem(shape)
    rate = _FAST_BIT if netem or not shape.rate_mbit else f"{shape.rate_mbit * 1e6:.0f}"
    burst = str(max(10 * shape.mtu_bytes, round(float(rate) / 8 / _TICKS_PER_S)))
    add = [tc, "qdisc", "add", "dev", dev]
    klass = [tc, "class", "add", "dev", dev, "parent", ROOT_HANDLE, "classid", _CLASS, "htb", "rate", f"{rate}bit",
             "burst", burst, "cburst", burst, "quantum", _QUANTUM_BYTES]  # fmt: skip
    inner = ["netem", *netem_arguments(shape)] if netem else ["pfifo", "limit", str(shape.limit_packets)]
    return [
        [*add, "root", "handle", ROOT_HANDLE, "htb", "default", default],
        klass,
        [*add, "parent", _CLASS, "handle", _NETEM_HANDLE, *inner],
    ]


def _filter(tc: str, dev: str, parent: str, to: Destination, words: list[str], then: list[str]) -> list[str]:
    protocol, priority = ("ip", "1") if to.version == 4 else ("ipv6", "2")
    head = [tc, "filter", "add", "dev", dev, "parent", parent, "protocol", protocol, "prio", priority, "u32"]
    return [*head, *words, *then]


def problems(applied: Applied) -> list[str]:
    """What is not (any more) as applied; a failed reading is a problem too, never an absence."""
    out = []
    devices = [applied.dev, *([applied.ifb] if applied.ifb else [])]
    for dev in devices:
        try:
            rows = listed([applied.tc, "-j", "qdisc", "show", "dev", dev])
        except Refused as error:
            out.append(f"{dev} cannot be read: {error}")
            continue
        inner = next((row for row in rows if row.get("handle") == _NETEM_HANDLE), None)
        if not any(row.get("root") and row.get("handle") == ROOT_HANDLE for row in rows) or inner is None:
            out.append(f"the shaping is gone from {dev}")
        elif uses_netem(applied.shape):
            out += [f"{dev}: {wrong}" for wrong in mismatches(applied.shape, inner.get("options") or {})]
    return out


def counters(applied: Applied) -> dict[str, int]:
    """Packets, bytes and drops of the shaped traffic that was sent."""
    rows = listed([applied.tc, "-s", "-j", "qdisc", "show", "dev", applied.dev])
    inner = next((row for row in rows if row.get("handle") == _NETEM_HANDLE), {})
    return {name: int(inner.get(name, 0)) for name in ("packets", "bytes", "drops")}


class Shaped:
    """A device that is shaped for as long as the context lasts, or this process lives. Raises with nothing left."""

    def __init__(self, applied: Applied) -> None:
        self.applied = applied
        _write(applied)
        self._keeper: subprocess.Popen[bytes] | None = None
        try:
            self._keeper = _start_keeper(applied.path)
            for argv in commands(applied):
                _do(argv)
            if wrong := problems(applied):
                raise WorldError(f"{applied.dev} is not shaped as asked: {'; '.join(wrong)}")
        except BaseException:
            self.close()
            raise

    def beat(self) -> None:
        """Tell the keeper that we live; raises `WorldError` when the shaping, or the keeper, is not there any more."""
        assert self._keeper is not None and self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(b"\n")
            self._keeper.stdin.flush()
        except BrokenPipeError:
            raise WorldError("the process that would clean up after us is gone, so the shaping is taken away") from None
        if wrong := problems(self.applied):
            raise WorldError(f"{self.applied.dev} is not shaped as asked any more: {'; '.join(wrong)}")

    def close(self) -> None:
        """Take the shaping away; a keeper that is left goes on trying when this fails."""
        left = undo(msgspec.to_builtins(self.applied))
        if not left:
            forget(self.applied.path)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None and keeper.stdout is not None
            try:
                if not left:
                    keeper.stdin.write(CLOSED)
                keeper.stdin.close()
            except BrokenPipeError:
                pass
            keeper.stdout.close()
            keeper.wait()
        if left and self.applied.path.exists():
            raise WorldError(f"the shaping could not all be taken away: {'; '.join(left)}: try `pddbench wan clear`")

    def __enter__(self) -> Shaped:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _do(argv: list[str]) -> None:
    try:
        command(argv)
    except Refused as error:
        words = argv[1:]
        if "netem" in words:
            raise InputError(f"this kernel has no netem, so it can only limit a rate: tc says {str(error)!r}") from None
        what = " ".join([Path(argv[0]).name, *words[:8]])
        raise InputError(f"the kernel refuses `{what} …`: {error}") from None


def _start_keeper(path: Path) -> subprocess.Popen[bytes]:
    keeper = subprocess.Popen(
        program("keeper", str(path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # what kills us, or our terminal, must not kill it
    )
    assert keeper.stdout is not None
    if keeper.stdout.readline() != b"ready\n":
        keeper.wait()
        raise WorldError("the process that cleans up after us could not start: nothing was changed")
    return keeper


def _write(applied: Applied) -> None:
    """The journal, on disk before anything changes; one that is there is somebody's, who lives or left something."""
    try:
        JOURNALS.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _outlived(applied.path):
            forget(applied.path)
        fd = os.open(applied.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InputError(
            f"{applied.dev} is shaped, or was and not cleared: `pddbench wan clear --dev {applied.dev}` first"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot keep a journal in {JOURNALS}: {error.strerror}: shaping a device needs root"
        ) from None
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(applied))
        file.flush()
        os.fsync(fd)


def _outlived(path: Path) -> bool:
    """Whether a journal's process is gone, and so is what it did (`examine` has found nothing of ours): its network
    namespace ended with everything, and the number of that is now another's."""  # fmt: skip
    try:
        os.kill(msgspec.json.decode(path.read_bytes(), type=Applied).pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, msgspec.DecodeError):
        return False
    return False


def journals() -> list[Applied]:
    """Those of this network namespace. Raises `WorldError` when one cannot be read."""
    try:
        paths = sorted(JOURNALS.glob(f"{network_namespace()}.*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=Applied) for path in paths]
    except (OSError, msgspec.DecodeError) as error:
        raise WorldError(f"cannot read the journals in {JOURNALS}: {error}") from None


def leftovers(known: list[Applied]) -> list[dict[str, Any]]:
    """Shaping of ours without a journal (it was lost): facts to undo it by. Raises `WorldError`."""
    ip, tc = tool("ip"), tool("tc")
    mine = {each.dev for each in known} | {each.ifb for each in known}
    try:
        rows = listed([tc, "-j", "qdisc", "show"])
        links = {link["ifname"]: link["ifindex"] for link in listed([ip, "-j", "link", "show"])}
    except Refused as error:
        raise WorldError(f"cannot look for shaping of ours: {error}") from None
    devs = {str(row["dev"]) for row in rows if row.get("root") and row.get("handle") == ROOT_HANDLE}
    ifbs = {name for name in links if name.startswith(IFB_PREFIX)}
    by_index = {index: name for name, index in links.items()}
    shaped = {by_index.get(int(ifb.removeprefix(IFB_PREFIX) or 0)): ifb for ifb in ifbs if _digits(ifb)}
    devs = (devs - ifbs) | {dev for dev in shaped if dev is not None}
    return [
        {"dev": dev, "ifindex": links[dev], "ip": ip, "tc": tc, "ifb": shaped.get(dev)}
        for dev in sorted(devs - mine)
    ]  # fmt: skip


def _digits(ifb: str) -> bool:
    return ifb.removeprefix(IFB_PREFIX).isdigit()


def as_json(applied: Applied) -> dict[str, Any]:
    """For `wan show --json`."""
    wrong = problems(applied)
    found: dict[str, Any] = json.loads(msgspec.json.encode(applied))
    return found | {"in_force": not wrong, "problems": wrong, "counters": {} if wrong else counters(applied)}
