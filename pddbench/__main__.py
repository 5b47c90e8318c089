"""`python -m pddbench` and the `pddbench` command: a Ctrl-C is one line as soon as Python itself is up."""

import os

try:
    import signal
    from types import FrameType
except KeyboardInterrupt:
    os.write(2, b"pddbench: stopped\n")
    os._exit(130)


def start() -> None:
    """Import the command and run it."""
    before = signal.signal(signal.SIGINT, _stopped)
    from pddbench.cli import main

    signal.signal(signal.SIGINT, before)
    main()


def _stopped(_number: int, _frame: FrameType | None) -> None:
    """Nothing has begun: say so and go, whatever is being imported."""
    os.write(2, b"pddbench: stopped\n")
    os._exit(130)


if __name__ == "__main__":
    start()
