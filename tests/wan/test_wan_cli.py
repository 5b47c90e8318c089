"""`pddbench wan probe` and `wan exec`: what they print, their exit codes, and what they leave."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import fail_in_ci
from traces_left import CHECKOUT, Marked, host_devices

from pddbench.errors import InputError
from pddbench.wan.execute import split_commands
from pddbench.wan.probe import probe

SERVER = """
import os, socket
s = socket.create_server((os.environ["PDDBENCH_WAN_LOCAL"], 9000))
while True:
    c, _ = s.accept()
    c.sendall(c.recv(100).upper())
"""
CLIENT = """
import os, socket, time
for _ in range(200):
    try:
        s = socket.create_connection((os.environ["PDDBENCH_WAN_PEER"], 9000), 5)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
start = time.perf_counter()
s.sendall(b"over the wan")
print(s.recv(100).decode(), time.perf_counter() - start)
raise SystemExit(5)
"""


def pddbench(*words, **options):
    argv = [sys.executable, "-m", "pddbench", *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT, timeout=120, check=False, **options)


def test_commands_are_split_at_the_separator():
    """A command put on the wrong side, or half a command, would be run."""
    assert split_commands(["a", "-x", ":::", "b"]) == (["a", "-x"], ["b"])
    assert split_commands(["b", "--", "c"]) == ([], ["b", "--", "c"])
    for words in ([], ["a", ":::"], [":::", "b"], ["a", ":::", "b", ":::", "c"]):
        with pytest.raises(InputError):
            split_commands(words)


def test_model_is_not_for_commands():
    """Commands would run over a link that has no packets, that is, over nothing."""
    done = pddbench("wan", "exec", "--wan", "model", "metro", "--", "true")
    assert done.returncode == 2 and "real packets" in done.stderr


@pytest.mark.parametrize("words", [["nowhere", "--", "true"], ["metro"], ["--wan", "nettem", "metro", "--", "true"],
                                   ["--loss-pct", "120", "metro", "--", "true"],
                                   ["--gilbert", "1", "metro", "--", "true"], ["--back", "x=1", "metro", "--", "true"],
                                   ["--gilbert", "1,30", "--loss-pct", "2", "metro", "--", "true"],
                                   ["--gilbert", "1,30", "--back", "loss_pct=2", "metro", "--", "true"],
                                   ["--back", "loss_pct=1", "--back", "loss_pct=2", "metro", "--", "true"],
                                   ["--event", "cut", "metro", "--", "true"],
                                   ["--facts", "/nonexistent/f", "metro", "--", "true"]])  # fmt: skip
def test_what_cannot_be_used_is_one_sentence_and_exit_2(words, tun_works):
    """A typo must not cost a traceback, nor run anything."""
    done = pddbench("wan", "exec", *words)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


def test_a_wan_for_an_endpoint_of_somebody_else_is_refused():
    """A replay would be believed to have gone over a link that nobody made."""
    trace = "traces/agentic-small.trace.jsonl.zst"
    done = pddbench("replay", "--trace", trace, "--base-url", "http://127.0.0.1:9", "--model", "m", "--wan", "tun")
    assert done.returncode == 2 and "wan exec" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_probe_says_for_each_backend_what_it_found(tun_works):
    """A guess about what works would end in a run with 0 ms."""
    done = pddbench("wan", "probe", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    rows = {row["backend"]: row for row in found["backends"]}
    assert list(rows) == ["netem", "tun", "model"]
    assert rows["tun"]["works"] and "round trips of" in rows["tun"]["reason"]
    assert found["auto"] == ("netem" if rows["netem"]["works"] else "tun")
    assert pddbench("wan", "probe").stdout.splitlines()[-1] == f"--wan auto takes {found['auto']}"


@pytest.mark.slow
def test_a_named_backend_that_does_not_work_is_exit_2_with_the_kernels_reason():
    """A silent fallback would be reported as netem."""
    if probe("netem").works:
        pytest.skip("this kernel has netem: nothing to refuse (the guest tests it)")
    done = pddbench("wan", "exec", "--wan", "netem", "metro", "--", "touch", "/tmp/never")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "netem" in done.stderr


@pytest.mark.slow
def test_exec_runs_server_and_client_over_the_link(tmp_path, tun_works):
    """The users' commands would talk over loopback, or their exit code be lost."""
    facts = tmp_path / "facts.json"
    done = pddbench("wan", "exec", "--wan", "tun", "--rate-mbit", "50", "--facts", str(facts), "national", "--",
                    sys.executable, "-c", SERVER, ":::", sys.executable, "-c", CLIENT)  # fmt: skip
    assert done.returncode == 5, done.stderr
    said, seconds = done.stdout.rsplit(" ", 1)
    assert said == "OVER THE WAN"
    assert float(seconds) >= 0.030, "a round trip takes twice the one-way delay"
    assert "tun" in done.stderr.splitlines()[0]
    kept = json.loads(facts.read_text())
    assert kept["backend"] == "tun" and kept["counters"]["a_to_b"]["packets"] > 0
    assert [f["name"] for f in kept["verifications"][0]["findings"]] == ["rtt median", "delay a_to_b", "throughput"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_both_sides(number, code, tun_works):
    """A stopped exec must not leave somebody's server running in a namespace that nobody can find."""
    before = host_devices()
    argv = ["-m", "pddbench", "wan", "exec", "--wan", "tun", "--no-verify", "metro", "--",
            "sleep", "300", ":::", "sh", "-c", "echo up; exec sleep 300"]  # fmt: skip
    owner = Marked(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert owner.popen.stdout.readline() == b"up\n"
    owner.alive()
    os.kill(owner.popen.pid, number)
    _, errors = owner.popen.communicate(timeout=60)
    assert owner.popen.returncode == code, errors
    assert b"Traceback" not in errors
    assert owner.left() == []
    assert host_devices() == before


def _measures(pid):
    try:
        return b"inside.measure" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
def test_a_signal_during_the_verification_is_clean(tun_works):
    """Ctrl-C right after the start would leave the link behind, or print a traceback."""
    owner = Marked(["-m", "pddbench", "wan", "exec", "--wan", "tun", "metro", "--", "true"], stderr=subprocess.PIPE)
    until = time.monotonic() + 30
    while not any(_measures(pid) for pid in owner.alive()):
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(owner.popen.pid, signal.SIGTERM)
    _, errors = owner.popen.communicate(timeout=60)
    assert owner.popen.returncode == 143 and b"Traceback" not in errors
    assert owner.left() == []


@pytest.mark.slow
def test_events_and_the_way_back(tmp_path, tun_works):
    """The link that was asked would not be the one of the facts."""
    facts = tmp_path / "facts.json"
    done = pddbench("wan", "exec", "--wan", "tun", "--no-verify", "--back", "one_way_ms=7", "--event", "cut 0.2 0.3",
                    "--facts", str(facts), "metro", "--", "sleep", "2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "there 1 ms" in done.stderr and "back 7 ms" in done.stderr
    kept = json.loads(facts.read_text())
    assert [change["wanted_s"] for change in kept["changes"]] == [0.2, 0.5]
    assert kept["directions"]["b_to_a"]["delay_ms"] == 7.0


STOP_EMULATOR = "p=$(pgrep -P $PPID -f [e]mulator); kill -STOP $p; sleep 4; kill -CONT $p; sleep 1"


@pytest.mark.slow
def test_an_event_that_came_late_is_said(tun_works):
    """On a busy machine a cut came three seconds late and a brown-out took twice as long, and nothing was said."""
    done = pddbench("wan", "exec", "--wan", "tun", "--no-verify", "--event", "cut 1.5 60", "metro", "--", "sh", "-c",
                    STOP_EMULATOR)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"NOT AS ASKED: the link was to be cut at 1\.5 s and was so [1-9]\.[0-9] s later", done.stderr)


@pytest.mark.slow
def test_without_privilege_over_the_host(tun_works):
    """Root over the host's network would be needed for what an unprivileged user namespace allows."""
    drop = ["setpriv", "--bounding-set", "-sys_admin,-net_admin", "--inh-caps", "-all"]
    if subprocess.run([*drop, "unshare", "-Un", "true"], capture_output=True, check=False).returncode != 0:
        fail_in_ci("this host gives no unprivileged user namespaces with a network, or has no setpriv")
    argv = [*drop, sys.executable, "-m", "pddbench", "wan", "exec", "--wan", "tun", "--no-verify",
            "--facts", "/dev/stdout", "metro", "--", "true"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["namespaces"]["privilege"] == "unprivileged user namespace"
