"""Runs a command as root in a User-Mode Linux guest, whose kernel has a real netem whatever the host's has.

The guest sees the host's files read-only and one folder read-write; its answer comes back as a file in there.
No answer is a failure.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

APT = "apt-get install user-mode-linux iproute2"
_MODULES = Path("/usr/lib/uml/modules")
_INIT = Path(__file__).with_name("uml_init.py")
_CHECKOUT = Path(__file__).resolve().parents[2]


def missing():
    """Why there can be no guest here; empty: there can be."""
    if shutil.which("linux.uml") is None or not _MODULES.is_dir():
        return f"user-mode-linux is not installed: {APT}"
    if shutil.which("tc", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
        return f"no tc: {APT}"
    return ""


def _copy_font_cache(into):
    """matplotlib's list of fonts, if it is installed, for a guest that cannot write to the host's home."""
    into.mkdir()
    try:
        import matplotlib
        import matplotlib.font_manager  # makes the list
    except ImportError:
        return
    for file in Path(matplotlib.get_cachedir()).glob("fontlist*.json"):
        shutil.copy(file, into)


def run(argv, folder, timeout_s=900.0, memory="512M"):
    """Run `argv` in the checkout, in a guest; returns its exit code and output. `folder` is /mnt in the guest."""
    environment = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": "/run/tmp", "TMPDIR": "/run/tmp",
                   "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(_CHECKOUT)}  # fmt: skip
    _copy_font_cache(folder / "fonts")  # made anew it takes the guest as long as everything else
    environment["MPLCONFIGDIR"] = "/mnt/fonts"
    job = {"argv": argv, "cwd": str(_CHECKOUT), "env": environment}
    (folder / "job.json").write_text(json.dumps(job))
    memory_folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # the guest's memory is a file
    with tempfile.TemporaryDirectory(dir=memory_folder) as state, (folder / "console").open("wb") as console:
        kernel = ["linux.uml", f"mem={memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
                  "panic=-1", "con=null", "con0=null,fd:1", f"uml_dir={state}", f"init={_INIT}",
                  f"UMLOUT={folder}", f"UMLMODS={_MODULES}"]  # fmt: skip
        guest = subprocess.Popen(
            kernel, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env={**os.environ, "TMPDIR": state},
            start_new_session=True,
        )  # fmt: skip
        try:
            guest.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if guest.poll() is None:
                os.killpg(guest.pid, 9)
                guest.wait()
    said = "\n".join(p.read_text(errors="replace") for p in (folder / "console", folder / "log") if p.exists())
    answer = folder / "rc"
    return (int(answer.read_text()) if answer.exists() else None), said
