"""The two sides of a link: apart from the host, apart from each other, and gone afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from traces_left import host_devices, left_by_kills, named_namespaces

from pddbench.wan.device import ADDRESSES
from pddbench.wan.namespaces import PINNED, Namespaces

pytestmark = pytest.mark.usefixtures("namespaces_work")

_LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
_SERVE = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); c, _ = s.accept(); c.sendall(b'from side a')"


def test_sides_are_apart_and_nothing_shows_on_the_host():
    """A device or an address in the host's own namespace could take over somebody's route."""
    before = host_devices(), named_namespaces()
    with Namespaces(*ADDRESSES) as sides:
        inodes = {os.fstat(side.net_fd).st_ino for side in (sides.a, sides.b)}
        assert len(inodes | {Path("/proc/self/ns/net").stat().st_ino}) == 3
        assert (host_devices(), named_namespaces()) == before
        server = sides.a.popen([sys.executable, "-c", _LISTEN], stdout=subprocess.PIPE)
        port = int(server.stdout.readline())
        for where in (None, sides.b):
            reach = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
            argv = [sys.executable, "-c", reach]
            done = where.run(argv) if where else subprocess.run(argv, capture_output=True, check=False)
            assert done.returncode != 0
        server.stdout.close()
    assert server.wait() == -signal.SIGKILL, "what still runs in a side ends with it"
    assert (host_devices(), named_namespaces()) == before


def test_a_socket_of_the_host_serves_the_hosts_clients_from_inside():
    """The client's path must not cross the link, nor need a device on the host."""
    with Namespaces(*ADDRESSES) as sides, socket.create_server(("127.0.0.1", 0)) as listener:
        argv = [sys.executable, "-c", _SERVE, str(listener.fileno())]
        sides.a.popen(argv, pass_fds=[listener.fileno()])
        with socket.create_connection(listener.getsockname(), 20) as client:
            assert client.recv(100) == b"from side a"


def test_sysctls_are_pinned_or_the_refusal_is_recorded():
    """A transfer of 50 ms became 213 with another host's tcp_slow_start_after_idle."""
    with Namespaces(*ADDRESSES) as sides:
        for side in ("a", "b"):
            for name, found in sides.facts[side]["sysctls"].items():
                refused = found.get("refused", {})
                taken = [value for value in PINNED[name] if value not in refused]
                assert found["is"] == taken[0] if taken else found["is"], (name, found)
            assert sides.facts[side]["sysctls"]["net.ipv4.tcp_no_metrics_save"]["is"] == "1"
            assert "cubic" in sides.facts[side]["recorded"]["net.ipv4.tcp_available_congestion_control"]
        read = sides.b.run(["cat", "/proc/sys/net/ipv4/tcp_slow_start_after_idle"])
        assert read.stdout.strip() == "0", "what a process inside sees"
        json.dumps(sides.facts)


def test_a_program_that_is_not_there_has_the_shells_exit_codes(tmp_path):
    """`wan exec` could not tell a missing command from one that failed."""
    with Namespaces(*ADDRESSES) as sides:
        assert sides.a.run(["no-such-program-here"]).returncode == 127
        script = tmp_path / "not-executable"
        script.write_text("")
        done = sides.a.run([str(script)])
        assert done.returncode == 126 and "cannot run" in done.stderr
        assert sides.b.run([sys.executable, "-c", "raise SystemExit(7)"]).returncode == 7


_HOLD = """
import subprocess, sys, time
from pddbench.wan.namespaces import Namespaces
while True:
    with Namespaces("198.18.0.1", "198.18.0.2") as sides:
        child = "import subprocess, time; subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)"
        sides.a.popen([sys.executable, "-c", child])
        sides.b.popen(["sleep", "300"])
        time.sleep(0.5)
"""


@pytest.mark.slow
def test_sigkill_at_random_moments_leaves_nothing():
    """A killed run must not leave processes or namespaces on somebody's machine, grandchildren included."""
    before = host_devices(), named_namespaces()
    assert left_by_kills(["-c", _HOLD], latest_s=0.5) == []
    assert (host_devices(), named_namespaces()) == before
