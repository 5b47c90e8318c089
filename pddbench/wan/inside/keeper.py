"""Watches over a shaped device while pddbench lives, and takes the shaping away when it does not: `keeper JOURNAL`.

The owner writes a line every few seconds. When its end of the pipe closes (it was killed), or nothing came for a while
(it hangs), what the journal names is undone. `closed` means that the owner did so itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path

from pddbench.wan.inside.kernel import say
from pddbench.wan.inside.undo import forget, undo

CLOSED = b"closed\n"
SILENCE_S = 20.0  # the owner writes every two seconds
_TRIES, _PAUSE_S = 10, 1.0
_CLEAN = 2  # in a row: a command that the owner had just started may have come after the first


def main(arguments: list[str]) -> None:
    """Until the owner says `closed`, ends, or falls silent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    say("ready")
    heard = b""
    while select.select([0], [], [], SILENCE_S)[0]:
        part = os.read(0, 4096)
        heard = (heard + part)[-len(CLOSED) :]
        if heard == CLOSED:
            return
        if not part:
            break
    path = Path(arguments[0])
    try:
        facts = json.loads(path.read_text())
    except FileNotFoundError:
        return  # cleared by somebody
    clean = 0
    for _ in range(_TRIES):
        clean = 0 if undo(facts) else clean + 1
        if clean == _CLEAN:
            forget(path)
            return
        time.sleep(_PAUSE_S)
