"""`wan apply` on a device: only the destination is slowed, nobody else's rules are touched, and nothing stays."""

import json
import os
import re
import signal
from pathlib import Path

import nic_kit as kit
import pytest

from pddbench.errors import InputError
from pddbench.wan.destination import masks, matches, parse
from pddbench.wan.inside.undo import undo
from pddbench.wan.netem import tool
from pddbench.wan.nic import JOURNALS, Applied, commands, problems
from pddbench.wan.shape import Shape


def test_port_ranges_are_covered_exactly():
    """A port beside the range would be slowed, or one within it not."""
    for low, high in ((1, 65535), (8000, 8010), (443, 443), (1, 1), (65535, 65535), (7, 300)):
        hit = [port for value, mask in masks(low, high) for port in range(65536) if port & mask == value]
        assert sorted(hit) == list(range(low, high + 1))
        assert len(masks(low, high)) <= 32


def test_destinations():
    """A destination that is read otherwise than meant slows the wrong traffic."""
    assert str(parse("10.0.0.5:8000-8010,9000")) == "10.0.0.5/32:8000-8010,9000"
    assert str(parse("[fd00::5]:80")) == "[fd00::5/128]:80" and parse("fd00::/64").version == 6
    assert matches(parse("10.0.0.0/8"), "dst") == [["match", "ip", "dst", "10.0.0.0/8"]]
    assert len(matches(parse("10.0.0.5:8000"), "dst")) == 4, "either end's port, TCP and UDP"
    for text in ("10.0.0.5/8", "0.0.0.0/0", "::/0", "host", "10.0.0.5:0", "10.0.0.5:9-8", "10.0.0.5:70000", ""):
        with pytest.raises(InputError, match="--to"):
            parse(text)


def applied(**changes):
    """The journal of a device, as far as a test needs it."""
    facts = {"dev": "nic0", "ifindex": 3, "netns": 1, "ip": "false", "tc": "false", "to": [parse("10.0.0.5")],
             "shape": Shape(0.0, 1000.0), "profile": "custom", "since_utc": "", "pid": 1}  # fmt: skip
    return Applied(**(facts | changes))


def test_a_burst_lasts_until_the_kernels_next_tick():
    """HTB and TBF cannot reach their rate with a smaller burst (TRAPS 50): 1 Gbit/s would be some 100 Mbit/s."""
    words = next(argv for argv in commands(applied()) if "class" in argv)
    assert int(words[words.index("burst") + 1]) >= 1000e6 / 8 / 100


def test_what_cannot_be_read_is_not_absent():
    """With a `tc` that fails, a device would be reported clear, and its journal thrown away (TRAPS 54)."""
    assert problems(applied()) == ["nic0 cannot be read: exit 1"]
    left = undo({"dev": "nic0", "ifindex": 3, "ip": "false", "tc": "false", "ifb": "pddwan3"})
    assert left and all("exit 1" in text for text in left)


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces_work")
def test_only_the_destination_is_slowed_and_refusals_leave_everything_as_it_was():
    """Somebody's whole machine would be slowed, or the qdisc that an operator made be lost (rates: without netem)."""
    with kit.two_machines() as sides, kit.server(sides.b, kit.SLOWED) as port, kit.server(sides.b, kit.OTHER) as other:
        popen = kit.apply(sides.a, "--dev", "nic0", "--to", kit.SLOWED, "--ingress", "--rate-mbit", "10", "custom")
        assert "a round trip (ping) takes" in popen.said and "0 asked: as asked" in popen.said
        assert kit.mbit(sides.a, kit.SLOWED, port) < 11.0
        assert kit.mbit(sides.a, kit.OTHER, other) > 40.0
        own = kit.pddbench(sides.a, "wan", "apply", "--dev", "lo", "--to", "127.0.0.1", "--rate-mbit", "10", "custom")
        assert own.returncode == 2 and "says to itself: add --i-know" in own.stderr
        again = kit.pddbench(sides.a, "wan", "apply", "--dev", "nic0", "--to", kit.SLOWED, "metro")
        assert again.returncode == 2 and "shaped by pddbench already" in again.stderr
        seen = json.loads(kit.pddbench(sides.a, "wan", "show", "--json").stdout)
        assert seen["applied"][0]["in_force"] and seen["applied"][0]["counters"]["packets"] > 100
        errors = kit.end(popen)
        carried = re.search(r"carried [0-9]+ packets, at most ([0-9.]+) Mbit/s of 10 asked", errors)
        assert 0 < float(carried[1]) < 11.0, errors
        assert kit.shaped(sides.a) == [], "cleared at the end, the ifb device too"
        assert kit.mbit(sides.a, kit.SLOWED, port) > 40.0

        kit.ip(sides.a, "route", "add", "default", "via", kit.SLOWED)
        words = ["wan", "apply", "--dev", "nic0", "--to", kit.SLOWED, "--rate-mbit", "5", "custom"]
        refused = kit.pddbench(sides.a, *words, "--", "true")
        assert refused.returncode == 2 and "default route" in refused.stderr
        done = kit.pddbench(sides.a, *words[:2], "--i-know", *words[2:], "--", "sh", "-c", "exit 7")
        assert done.returncode == 7, done.stderr
        mine = [tool("tc"), "qdisc", "add", "dev", "nic0", "root", "handle", "5:", "htb"]
        assert sides.a.run(mine).returncode == 0
        foreign = kit.pddbench(sides.a, *words[:2], "--i-know", *words[2:])
        assert foreign.returncode == 2 and "not ours (htb 5:)" in foreign.stderr
        assert kit.pddbench(sides.a, "wan", "clear").stdout == "nothing to clear\n"
        assert kit.shaped(sides.a) == ["htb nic0"], "theirs is still there"
        for done in (again, refused, foreign):
            assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces_work")
def test_sigkill_at_ten_random_moments_leaves_a_device_that_heals():
    """After a SIGKILL the rules would stay until somebody finds out why the machine is slow (TRAPS 53)."""
    kit.check_healing_after_kills(10, "--ingress", "--rate-mbit", "9")


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces_work")
def test_a_journal_of_a_namespace_that_is_gone_blocks_nobody():
    """The kernel gives a number again: a device that was never touched would be called shaped, for ever."""
    with kit.two_machines() as sides:
        words = ["--dev", "nic0", "--to", "10.9.0.0/29", "--rate-mbit", "10", "custom"]
        popen = kit.apply(sides.a, *words)
        assert "not measured: 10.9.0.0/29 is 8 addresses" in popen.said
        (journal,) = JOURNALS.glob(f"{os.fstat(sides.a.net_fd).st_ino}.*")
        kept = journal.read_bytes()
        kit.end(popen)
        journal.write_bytes(kept)
        done = kit.pddbench(sides.a, "wan", "apply", *words, "--", "true")
        assert done.returncode == 0, done.stderr
        assert not journal.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces_work")
def test_clear_finds_what_has_no_journal_and_no_keeper():
    """With pddbench and its keeper both killed only a person can clear, and must be able to, journal or not."""
    with kit.two_machines() as sides:
        popen = kit.apply(sides.a, "--dev", "nic0", "--to", kit.SLOWED, "--ingress", "--rate-mbit", "10", "custom")
        inode = json.loads(kit.pddbench(sides.a, "wan", "show", "--json").stdout)["applied"][0]["netns"]
        for pid in keepers_of(f"{inode}.nic0.json"):
            os.kill(pid, signal.SIGKILL)
        popen.kill()
        popen.communicate()
        (JOURNALS / f"{inode}.nic0.json").unlink()
        assert len(kit.shaped(sides.a)) >= 3
        assert "journal is lost" in kit.pddbench(sides.a, "wan", "show").stdout
        assert kit.pddbench(sides.a, "wan", "clear").stdout == "cleared: nic0\n"
        assert kit.shaped(sides.a) == []


def keepers_of(journal):
    """Process ids of the keepers of a journal."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode() if entry.name.isdigit() else ""
        except OSError:
            continue
        if "wan.inside.keeper" in words and words.rstrip("\0").endswith(journal):
            found.append(int(entry.name))
    assert found
    return found
