"""Two namespaces with a plain veth pair, and `pddbench wan apply` inside one of them."""

import json
import random
import subprocess
import sys
import time
from contextlib import contextmanager

from pddbench.wan.namespaces import Namespaces, program
from pddbench.wan.netem import tool

SLOWED, OTHER = "10.9.0.2", "10.9.0.3"


def ip(side, *words):
    done = side.run([tool("ip"), *words])
    assert done.returncode == 0, done.stderr


@contextmanager
def two_machines(devices=1):
    """Sides a and b; `nicN` in a is at the other end of a cable to b, which has two addresses."""
    with Namespaces("10.9.0.1", SLOWED) as sides:
        for n in range(devices):
            ip(sides.a, "link", "add", f"nic{n}", "type", "veth", "peer", "name", f"far{n}",
               "netns", str(sides.holder_pid))  # fmt: skip
            ip(sides.a, "link", "set", f"nic{n}", "up")
            ip(sides.b, "link", "set", f"far{n}", "up")
        ip(sides.a, "address", "add", "10.9.0.1/24", "dev", "nic0")
        for address in (SLOWED, OTHER):
            ip(sides.b, "address", "add", f"{address}/24", "dev", "far0")
        yield sides


def pddbench(side, *words):
    """`pddbench WORDS` inside a side, to its end."""
    return side.run([sys.executable, "-m", "pddbench", *words], timeout_s=120.0)


def apply(side, *words):
    """A running `pddbench wan apply`, shaped by the time this returns."""
    popen = side.popen([sys.executable, "-m", "pddbench", "wan", "apply", *words], stderr=subprocess.PIPE, text=True)
    said = []
    while "Ctrl-C ends it" not in (said or [""])[-1]:
        said.append(popen.stderr.readline())
        assert said[-1], said
    popen.said = "".join(said)
    return popen


def end(popen, code=143):
    """SIGTERM, and it clears up."""
    popen.terminate()
    _, errors = popen.communicate(timeout=60)
    assert popen.returncode == code and "Traceback" not in errors, errors
    return errors


@contextmanager
def server(side, address):
    """The port of a measuring server at an address of a side."""
    popen = side.popen(program("measure", "serve", address), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield popen.stdout.readline().decode().strip()
    finally:
        popen.stdin.close()
        popen.stdout.close()
        popen.wait()


def measure(side, what, address, port, *arguments):
    """One of the measures of `wan.inside.measure`."""
    done = side.run(program("measure", what, address, port, *map(str, arguments)))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def mbit(side, address, port):
    """What one flow to there reaches."""
    found = measure(side, "load", address, port, 0.3, 1.0, "cubic")
    return found["bytes"] * 8 / found["seconds"] / 1e6


def check_healing_after_kills(count, *figures):
    """SIGKILL as many `wan apply`, each of a device of its own, at random moments: within a minute nothing is left,
    and `wan clear` finds nothing."""  # fmt: skip
    draw = random.Random()
    with two_machines(devices=count) as sides:
        words = ["--to", f"{SLOWED}:80-90", *figures, "custom"]
        owners = [sides.a.popen([sys.executable, "-m", "pddbench", "wan", "apply", "--dev", f"nic{n}", *words],
                                stderr=subprocess.DEVNULL) for n in range(count)]  # fmt: skip
        until = time.monotonic() + 60
        while not shaped(sides.a) and time.monotonic() < until:
            time.sleep(0.02)
        assert shaped(sides.a), "from here on some of them are applied, some half, some not yet"
        for owner in owners:
            time.sleep(draw.uniform(0.0, 0.4))
            owner.kill()
            owner.wait()
        killed = time.monotonic()
        while shaped(sides.a) and time.monotonic() < killed + 60:
            time.sleep(0.1)
        assert shaped(sides.a) == [], "within a minute, by itself"
        assert pddbench(sides.a, "wan", "clear").returncode == 0
        seen = json.loads(pddbench(sides.a, "wan", "show", "--json").stdout)
        assert seen == {"applied": [], "without_journal": []}


def shaped(side):
    """What of ours is on the devices of a side: qdiscs and ifb devices."""
    listing = json.loads(side.run([tool("tc"), "-j", "qdisc", "show"]).stdout)
    found = [f"{row['kind']} {row['dev']}" for row in listing if row.get("handle") != "0:"]
    links = json.loads(side.run([tool("ip"), "-j", "link", "show"]).stdout)
    return found + [link["ifname"] for link in links if link["ifname"].startswith("pddwan")]
