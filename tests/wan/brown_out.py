"""What a line carries, quarter by quarter of a second, while its rate falls and comes back: the same for each backend.

Paced datagrams, nearly as many as the line carries: TCP would slow down by itself.
"""

import json
import math
import subprocess
import sys
import time

from pddbench.wan.schedule import run_schedule
from pddbench.wan.shape import Shape
from pddbench.wan.steps import brown_out

LINE = Shape(15.0, 4.0)  # a guest without a core of its own sends no faster
OFFERED_MBIT, SHARE, AT_S, FOR_S, END_S = 3.2, 0.1, 1.0, 2.5, 7.0
BIN_S, BYTES = 0.25, 1200
_FRAME_BYTES = BYTES + 8 + 20 + 14

SEND = """
import socket, sys, time
host, port, begin_s, end_s, every_s, n_bytes = sys.argv[1], *map(float, sys.argv[2:])
out, due = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), begin_s
while due < end_s:
    time.sleep(max(0.0, due - time.monotonic()))
    out.sendto(bytes(int(n_bytes)), (host, int(port)))
    due += every_s
"""
RECEIVE = """
import json, socket, sys, time
host, begin_s, end_s, bin_s = sys.argv[1], *map(float, sys.argv[2:])
into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
into.bind((host, 0))
print(into.getsockname()[1], flush=True)
packets = [0] * round((end_s - begin_s) / bin_s)
while (left_s := end_s - time.monotonic()) > 0:
    into.settimeout(left_s)
    try:
        into.recv(65536)
    except TimeoutError:
        break
    index = int((time.monotonic() - begin_s) / bin_s)
    if 0 <= index < len(packets):
        packets[index] += 1
print(json.dumps(packets))
"""


def carried_mbit(link):
    """Mbit/s of frames in each quarter of a second, with a brown-out at AT_S for FOR_S; and what was applied when."""
    begin_s = time.monotonic() + 4.0  # a starved guest takes 2 s to start both
    span = [str(begin_s), str(begin_s + END_S)]
    python = [sys.executable, "-I", "-S", "-c"]
    receiver = link.side_b.popen([*python, RECEIVE, link.side_b.address, *span, str(BIN_S)], stdout=subprocess.PIPE)
    port = receiver.stdout.readline().decode().strip()
    every_s = _FRAME_BYTES * 8 / (OFFERED_MBIT * 1e6)
    sender = link.side_a.popen([*python, SEND, link.side_b.address, port, *span, str(every_s), str(BYTES)])
    applied = run_schedule(link, brown_out(AT_S, FOR_S, SHARE), start_s=begin_s)
    packets = json.loads(receiver.communicate(timeout=60)[0])
    sender.wait(60)
    return [count * _FRAME_BYTES * 8e-6 / BIN_S for count in packets], applied


def check(mbit, applied):
    """That the line was slow in the brown-out, and no longer than it. A slow machine offers less, and changes later."""
    seen = mbit, applied
    fall, rise = applied

    def mean(from_s, until_s):
        bins = mbit[math.ceil(from_s / BIN_S) : math.floor(until_s / BIN_S)]
        return sum(bins) / len(bins)

    assert fall.in_force_s < rise.wanted_s - 4 * BIN_S and rise.in_force_s < END_S - 4 * BIN_S, seen
    assert mean(3 * BIN_S, fall.wanted_s) > 3 * SHARE * LINE.rate_mbit, seen
    slow = mean(fall.in_force_s + BIN_S, rise.wanted_s)
    assert 0.7 * SHARE * LINE.rate_mbit < slow < 1.3 * SHARE * LINE.rate_mbit, seen
    after = mean(rise.in_force_s, END_S)
    assert 4 * SHARE * LINE.rate_mbit < after < 1.15 * LINE.rate_mbit, seen
