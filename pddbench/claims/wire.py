"""The two ends of C11 over packets: hand-offs of ids and of KV over open connections, each timed to its answer.

`python -m pddbench.claims.wire serve` and `… send FILE IDS KV CROSS` are run by `claims.packets` on the two sides of a
link. A hand-off is a length of 8 bytes and that many bytes; the answer, one byte, comes when all are there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from pddbench.wan.sockets import pin

PORT = 7411
IDS_BYTES, KV_BYTES = 1_500, 4_649_000  # of 100 tokens, as published (C10)
_FILL_S = 2.0  # others' flow has opened its window and fills the queue by then
_PAUSE_S = 0.03  # between hand-offs; shorter than what puts a connection back into slow start
_CONNECT_S = 20.0
_ANSWER_S = 120.0


def serve() -> None:
    """Answer hand-offs until killed."""
    listener = socket.create_server((os.environ["PDDBENCH_WAN_LOCAL"], PORT))
    while True:
        sock, _ = listener.accept()
        pin(sock)
        threading.Thread(target=_answer, args=(sock,), daemon=True).start()


def _answer(sock: socket.socket) -> None:
    buffer = bytearray(1 << 20)
    while head := sock.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(head, "big")
        while left:
            got = sock.recv_into(buffer, min(left, len(buffer)))
            if not got:
                return
            left -= got
        sock.sendall(b".")


def _connect() -> socket.socket:
    until = time.monotonic() + _CONNECT_S
    while True:
        try:
            sock = socket.create_connection((os.environ["PDDBENCH_WAN_PEER"], PORT), timeout=_ANSWER_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
            continue
        pin(sock)
        return sock


def _hand_off(sock: socket.socket, n_bytes: int) -> float:
    """Seconds from the first byte to the answer."""
    start = time.monotonic()
    sock.sendall(n_bytes.to_bytes(8, "big") + bytes(n_bytes))
    sock.recv(1)
    return time.monotonic() - start


def _elephant(sock: socket.socket) -> None:
    """Others' KV: one flow that never ends."""
    chunk = (1 << 26).to_bytes(8, "big") + bytes(1 << 26)
    while True:
        sock.sendall(chunk)
        sock.recv(1)


def send(out: Path, ids: int, kv: int, cross: bool) -> None:
    """Time `ids` hand-offs of ids and `kv` of KV, spread evenly between each other, and write both lists."""
    ids_sock, kv_sock = _connect(), _connect()
    for sock, n_bytes in ((ids_sock, IDS_BYTES), (kv_sock, KV_BYTES)):
        _hand_off(sock, n_bytes)  # opens the window
    if cross:
        threading.Thread(target=_elephant, args=(_connect(),), daemon=True).start()
        time.sleep(_FILL_S)
    times: dict[str, list[float]] = {"ids": [], "kv": []}
    for n in range(kv):
        times["kv"].append(_hand_off(kv_sock, KV_BYTES))
        while len(times["ids"]) * kv < (n + 1) * ids:
            times["ids"].append(_hand_off(ids_sock, IDS_BYTES))
            time.sleep(_PAUSE_S)
    out.write_text(json.dumps(times), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        send(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "cross")
