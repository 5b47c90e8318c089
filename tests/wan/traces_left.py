"""What a process may have left behind: found by a mark in the environment of all its descendants, and by namespaces."""

import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_VARIABLE = "PDDBENCH_TEST_MARK"


def host_devices():
    """Names of the network devices in the namespace of this process."""
    return sorted(entry.name for entry in Path("/sys/class/net").iterdir())


def named_namespaces():
    """What `ip netns` would list."""
    folder = Path("/run/netns")
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


HOLD = """
import sys, time
from pddbench.wan.openlink import open_shapes
from pddbench.wan.shape import Shape
while True:
    with open_shapes(Shape(1.0, 100.0), Shape(1.0, 100.0), sys.argv[1]) as link:
        link.side_a.popen(["sleep", "300"])
        link.verify(load=False)
"""  # a link that is made, measured and taken down, again and again


def left_by_kills(argv, latest_s, count=10):
    """Start as many, SIGKILL each at a random moment up to `latest_s`; what is left: processes, namespaces, folders."""
    draw = random.Random()
    owners = [Marked(argv, stderr=subprocess.DEVNULL) for _ in range(count)]  # all run at the same time
    for owner in owners:
        until = time.monotonic() + draw.uniform(0.05, latest_s)
        while time.monotonic() < until:
            owner.alive()
        owner.popen.kill()
        owner.popen.wait()
    return [left for owner in owners for left in owner.left()]


class Marked:
    """A Python child whose descendants can all be found, whatever they do with their parents and groups."""

    def __init__(self, argv, **options):
        self.mark = uuid.uuid4().hex
        self._place = tempfile.TemporaryDirectory()
        environment = {**os.environ, _VARIABLE: self.mark, "PYTHONPATH": str(CHECKOUT), "TMPDIR": self._place.name}
        self.popen = subprocess.Popen([sys.executable, *argv], env=environment, cwd=CHECKOUT, **options)
        self.namespaces = set()

    def alive(self):
        """Process ids that carry the mark, zombies excluded; their network namespaces are remembered."""
        wanted, found = f"{_VARIABLE}={self.mark}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
                    self.namespaces.add(os.stat(entry / "ns" / "net").st_ino)  # noqa: PTH116
            except OSError:
                continue
        return found

    def wait_until_gone(self, limit_s=20.0):
        """The processes left after a while; none: an empty list."""
        until = time.monotonic() + limit_s
        while (left := self.alive()) and time.monotonic() < until:
            time.sleep(0.02)
        return left

    def left(self):
        """Processes, namespaces, and what lies where temporary files go; once."""
        found = [*self.wait_until_gone(), *self.namespaces_held()]
        with self._place as place:
            return [*found, *(entry.name for entry in Path(place).iterdir())]

    def namespaces_held(self, limit_s=20.0):
        """Those of its namespaces, the host's excluded, that some process is still in after a while.

        A process that is just ending has lost its marks (its environment) before it leaves its namespace.
        """
        until = time.monotonic() + limit_s
        while (left := self._namespaces_held()) and time.monotonic() < until:
            time.sleep(0.02)
        return left

    def _namespaces_held(self):
        own = self.namespaces - {os.stat("/proc/self/ns/net").st_ino}  # noqa: PTH116
        held = set()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit():
                    held.add(os.stat(entry / "ns" / "net").st_ino)  # noqa: PTH116
            except OSError:
                continue
        return own & held
