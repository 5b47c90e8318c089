"""Tests of the netem backend on a real netem. They run as root in the guest, see test_uml_netem.py.

One link is opened for all, and changed from test to test.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import brown_out
import nic_kit as kit
import three_arms
from traces_left import CHECKOUT, HOLD, left_by_kills

from pddbench.errors import WorldError
from pddbench.wan.device import NAME
from pddbench.wan.guard import Guard
from pddbench.wan.link import Link
from pddbench.wan.meter import Meter
from pddbench.wan.netem import tool
from pddbench.wan.openlink import open_shapes
from pddbench.wan.schedule import run_schedule, shape_at
from pddbench.wan.shape import Gilbert, Shape
from pddbench.wan.steps import cut
from pddbench.wan.transfer import transfer_s
from pddbench.wan.verify import check_delays, check_loss

OUT = Path("/mnt")
PLAIN = Shape(15.0, 100.0)
SIZES = (1_000_000, 10_000_000)
LATE_ROUNDS = {1_000_000: 8, 10_000_000: 11}  # the handshake and the rounds of slow start
_LATE_MS = 15.0


@pytest.fixture(scope="module")
def link():
    with open_shapes(PLAIN, PLAIN, "netem") as opened:
        yield opened


@pytest.fixture(scope="module")
def meter(link):
    with Meter(link.side_a, link.side_b) as opened:
        yield opened


def options(link, direction):
    return link.backend.read_back()[direction]["options"]


def test_each_end_delays_its_own_way(link, meter):
    """netem is egress only: put on one end it is half the round trip, put twice it is double."""
    link.change(Shape(10.0, 100.0), Shape(20.0, 50.0))
    times = meter.rtt_ms(20, 2.0)
    assert len(times) == 20
    assert 30.0 <= min(times) <= 30.0 + _LATE_MS
    assert options(link, "a_to_b")["delay"]["delay"] == pytest.approx(0.010)
    assert options(link, "b_to_a")["delay"]["delay"] == pytest.approx(0.020)


def test_a_changed_rate_is_the_new_one(link, meter):
    """`tc qdisc replace` keeps the old rate; only its own measurement shows it."""
    link.change(Shape(1.0, 5.0), PLAIN)
    slow, _ = meter.throughput(0.5, 1.5)
    link.change(Shape(1.0, 50.0), PLAIN)
    fast, _ = meter.throughput(0.5, 1.5)
    assert slow <= 5.0 * 1.25, "a guest that slept reads more than a second's worth in a second"
    assert 5.0 * 1.5 < fast <= 50.0 * 1.25


def test_a_brown_out_lasts_as_long_as_asked(link):
    """netem times a packet when it comes: what queued in a brown-out left at its rate for ten times as long."""
    link.change(brown_out.LINE, brown_out.LINE)
    mbit, applied = brown_out.carried_mbit(link)
    (OUT / "brown_out.json").write_text(json.dumps([mbit, [change.in_force_s for change in applied]]))
    brown_out.check(mbit, applied)


def test_a_line_is_as_fast_after_a_brown_out_as_before(link, meter):
    """A bucket of a millisecond that a busy machine serves later than that loses rate: 69 Mbit/s were left of 96."""

    def fastest():
        return max(meter.throughput(0.5, 1.0)[0] for _ in range(3))

    link.change(PLAIN, PLAIN)
    before = fastest()
    slow = shape_at(PLAIN, 0.1)
    link.change(slow, slow)
    link.change(PLAIN, PLAIN)
    assert fastest() > 0.85 * before


def test_jitter_has_its_distribution_and_does_not_reorder(link, meter):
    """Jitter without a rate, or none at all, would be reported as jitter."""
    shape = Shape(15.0, 100.0, jitter_ms=3.0)
    link.change(shape, PLAIN)
    assert options(link, "a_to_b")["delay"]["jitter"] == pytest.approx(0.003)
    times = meter.rtt_ms(60, 2.0)
    assert max(times) - min(times) > 6.0, "60 draws with a standard deviation of 3 ms"


def test_loss_is_by_packet_and_within_its_interval(link, meter):
    """With super-packets a loss of 2% hits 64 KB at a time."""
    shape = Shape(2.0, 1000.0, loss_pct=2.0)
    link.change(shape, Shape(2.0, 1000.0))
    found = link.backend.read_back()
    assert found["a_to_b"]["gso_max_segs"] == 1 and found["b_to_a"]["gso_max_segs"] > 1
    assert any(check_loss(link.backend, meter, "a_to_b", shape).ok for _ in range(3)), "each by a chance of 99%"


def test_bursty_loss(link, meter):
    """The four figures of Gilbert-Elliott would reach tc in another order than meant."""
    g = Gilbert(1.0, 20.0, 80.0, 0.5)
    shape = Shape(2.0, 100.0, gilbert=g)
    link.change(shape, PLAIN)
    kept = options(link, "a_to_b")["loss-gemodel"]
    assert [kept[name] for name in ("p", "r", "1-h", "1-k")] == pytest.approx([0.01, 0.2, 0.8, 0.005], rel=1e-3)
    assert any(check_loss(link.backend, meter, "a_to_b", shape).ok for _ in range(3)), "each by a chance of 99%"


NETEM = ["parent", "1d:1", "handle", "1e:", "netem", "limit", "10000", "rate", "100mbit", "delay"]
BUCKET = ["root", "handle", "1d:", "tbf", "limit", "1000000", "rate", "100gbit", "burst"]
OTHERS = {
    r"delay\.delay": [*NETEM, "1ms"],
    "duplicate": [*NETEM, "15ms", "duplicate", "50%"],
    "packetoverhead": [*NETEM, "15ms", "rate", "100mbit", "500"],
    "burst": [*BUCKET, "1500"],
    "peakrate|minburst": [*BUCKET, "250000000", "peakrate", "101gbit", "mtu", "70000"],
}


def test_somebody_elses_change_is_seen(link):
    """A rule taken away during a run leaves a link of 0 ms; a bucket smaller than a packet loses all of them."""
    for named, words in OTHERS.items():
        link.side_a.run([tool("tc"), "qdisc", "delete", "dev", NAME, "root"])  # made anew by the next change
        link.change(Shape(1.0, 100.0), PLAIN)
        link.change(PLAIN, PLAIN)
        link.backend.check_unchanged()
        done = link.side_a.run([tool("tc"), "qdisc", "change", "dev", NAME, *words])
        assert done.returncode == 0, (named, done.stderr)
        with pytest.raises(WorldError, match=named):
            link.backend.check_unchanged()
    link.side_a.run([tool("tc"), "qdisc", "delete", "dev", NAME, "root"])
    link.change(Shape(1.0, 100.0), PLAIN)
    link.backend.check_unchanged()
    added = ["qdisc", "add", "dev", NAME, "parent", "1e:1", "handle", "77:", "pfifo", "limit", "1"]
    assert link.side_a.run([tool("tc"), *added]).returncode == 0
    with pytest.raises(WorldError, match="there is a pfifo of somebody else"):
        link.backend.check_unchanged()
    for side in (link.side_a, link.side_b):
        assert side.run([tool("tc"), "qdisc", "delete", "dev", NAME, "root"]).returncode == 0
    with pytest.raises(WorldError, match="gone"):
        link.backend.check_unchanged()
    link.change(Shape(2.0, 100.0), Shape(1.0, 100.0))
    link.backend.check_unchanged()


def test_transfers_follow_slow_start():
    """The times that go into the table of docs/wan.md; a link without slow start would be several times faster."""
    found = {}
    shape = Shape(15.0, 1000.0)
    with open_shapes(shape, shape, "netem") as link, Meter(link.side_a, link.side_b) as meter:
        rtt, there = check_delays(meter, shape, shape)
        for size in SIZES:
            found[size] = meter.measure("fetch", size, 3, "cubic", seconds=20)
    (OUT / "transfers.json").write_text(json.dumps({"rtt": rtt.found, "there": there.found, "fetch": found}))
    one = min(found[1_000_000]["seconds"])
    assert one >= 0.030 + 7 * 0.030, (
        "a handshake and seven rounds: no faster is possible with ten segments at the start"
    )
    for size, law_s in ((size, transfer_s(Link(15.0, 1000.0, 1000.0), size) + 0.015) for size in SIZES):
        late_s = LATE_ROUNDS[size] * (rtt.found / 1e3 - 0.030)  # what the guest adds to each round trip, as measured
        assert min(found[size]["seconds"]) < (1 + three_arms.WITHIN) * law_s + late_s, (size, found[size]["seconds"])


def test_schedule_cuts_and_heals(link, meter):
    """A cut that does not happen, or is never healed, would be measured as the link."""
    link.change(PLAIN, PLAIN)
    seen = []
    applied = run_schedule(link, cut(0.0, 2.0), before_each=lambda: seen.append(len(meter.rtt_ms(3, 0.3))))
    assert len(applied) == 2
    assert seen == [3, 0], "before the cut, during it"
    assert len(meter.rtt_ms(3, 2.0)) == 3


def test_sigkill_at_ten_random_moments_leaves_no_device():
    """A veth pair in a namespace that something still holds would stay until the next boot."""
    assert left_by_kills(["-c", HOLD, "netem"], latest_s=1.0) == []
    assert [entry.name for entry in Path("/sys/class/net").iterdir() if entry.name == NAME] == []


def test_sigkill_of_apply_leaves_a_device_that_heals():
    """After a SIGKILL the delay would stay until somebody finds out why the machine is slow."""
    kit.check_healing_after_kills(3, "--ingress", "--one-way-ms", "20")


def test_exec_without_privilege_over_the_host(tmp_path):
    """`--wan netem` would be taken and something else used; an unprivileged user namespace is what most users have."""
    drop = ["setpriv", "--bounding-set", "-sys_admin,-net_admin", "--inh-caps", "-all"]
    kept = tmp_path / "facts.json"
    argv = [*drop, sys.executable, "-m", "pddbench", "wan", "exec", "--wan", "netem", "--no-verify",
            "--facts", str(kept), "national", "--", "sh", "-c", "tc qdisc show dev wan0; exit 3"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "netem" in done.stdout and "delay 15ms" in done.stdout
    facts = json.loads(kept.read_text())
    assert facts["namespaces"]["privilege"] == "unprivileged user namespace"
    assert facts["read_back"]["a_to_b"]["kind"] == "netem"


def test_a_guard_sees_a_qdisc_that_is_taken_away():
    """A run would go on over a link of 0 ms and report it as the one asked."""
    guard = Guard(open_shapes(PLAIN, PLAIN, "netem"), every_s=0.3)
    try:
        guard.begin()
        assert guard.link.side_a.run([tool("tc"), "qdisc", "delete", "dev", NAME, "root"]).returncode == 0
        until = time.monotonic() + 60
        while not guard.problems and time.monotonic() < until:
            time.sleep(0.1)
        facts = guard.facts()
    finally:
        guard.close()
    assert not facts["ok"] and any("gone" in problem or "less than" in problem for problem in facts["problems"])
    assert not guard.dead, "the devices are still there"


def test_a_real_device_delays_only_the_destination():
    """`wan apply` would slow everything, or nothing, or one way where two were asked."""
    with kit.two_machines() as sides, kit.server(sides.b, kit.SLOWED) as port, kit.server(sides.b, kit.OTHER) as other:
        ports = {kit.SLOWED: port, kit.OTHER: other}

        def least_ms(address):
            return min(kit.measure(sides.a, "rtt", address, ports[address], 10, 2.0)["rtt_ms"])

        for flags, wanted_ms in (([], 20.0), (["--ingress"], 40.0)):
            argv = ["--dev", "nic0", "--to", f"{kit.SLOWED}:{port}", *flags, "--one-way-ms", "20", "custom"]
            popen = kit.apply(sides.a, *argv)
            assert f", {wanted_ms:g} asked: " in popen.said and "not measured" not in popen.said, popen.said
            found = re.search(r"takes ([0-9.]+) ms, ([0-9.]+) before", popen.said)
            assert wanted_ms - 1 < float(found[1]) - float(found[2]) < wanted_ms + _LATE_MS
            assert wanted_ms <= least_ms(kit.SLOWED) < wanted_ms + _LATE_MS
            assert least_ms(kit.OTHER) < 15.0
            kit.end(popen)
            assert kit.shaped(sides.a) == []
        argv = ["wan", "apply", "--dev", "nic0", "--to", kit.SLOWED, "congested", "--"]
        done = kit.pddbench(sides.a, *argv, tool("ip"), "-d", "link", "show", "nic0")
        assert "gso_max_segs 1 " in done.stdout, "a loss must not hit 64 KB at once"
        assert "gso_max_segs 65535" in sides.a.run([tool("ip"), "-d", "link", "show", "nic0"]).stdout


def test_three_arms_over_netem(tmp_path):
    """The emulated deployments would not run over the real emulator, or not be slowed by it."""
    done = three_arms.run(tmp_path, "auto", speed=1.0)
    three_arms.check(done, tmp_path, "netem", speed=1.0)
    assert "chosen by auto" in " ".join(done.stdout.split("\n\n")[0].split())
