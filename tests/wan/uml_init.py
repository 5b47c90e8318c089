#!/usr/bin/python3
"""First process of the User-Mode Linux guest: mounts, kernel modules, then the job; its exit code goes to a file.

The kernel's command line gives UMLOUT (a folder of the host, mounted read-write at /mnt) and UMLMODS (its modules).
Everything else of the host's files is there read-only.
"""

import ctypes
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

MODULES = (
    "sch_netem veth ifb sch_ingress act_mirred act_gact cls_u32 cls_flower sch_htb sch_tbf dummy tun tcp_bbr".split()
)
_FINIT_MODULE = 313  # system call on x86-64
_EEXIST = 17
_POWER_OFF = 0x4321FEDC


def mount(kind, where, *options):
    subprocess.run(["mount", "-t", kind, *options, kind, where], check=True)


def mount_all():
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    for where in ("/run", "/dev/shm"):  # not /tmp: the checkout may lie there
        if Path(where).is_dir():
            mount("tmpfs", where)
    Path("/run/tmp").mkdir()
    subprocess.run(["mount", "-t", "hostfs", "-o", os.environ["UMLOUT"], "none", "/mnt"], check=True)


def load_modules(folder, wanted):
    """Load modules with what they need; one that is not there is said."""
    libc = ctypes.CDLL(None, use_errno=True)
    rows = [line.split(":") for line in (folder / "modules.dep").read_text().splitlines()]
    needs = {path: rest.split() for path, rest in rows}
    by_name = {Path(path).name.removesuffix(".ko"): path for path in needs}
    for name in wanted:
        if name not in by_name:
            print(f"guest: no module {name}", flush=True)
            continue
        path = by_name[name]
        for each in [*reversed(needs[path]), path]:
            with (folder / each).open("rb") as file:
                if libc.syscall(_FINIT_MODULE, file.fileno(), b"", 0) and ctypes.get_errno() != _EEXIST:
                    print(f"guest: cannot load {each}: {os.strerror(ctypes.get_errno())}", flush=True)


def run_job():
    mount_all()
    load_modules(Path(os.environ["UMLMODS"]) / os.uname().release, MODULES)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    job = json.loads(Path("/mnt/job.json").read_text())
    with Path("/mnt/log").open("wb") as log:
        done = subprocess.run(job["argv"], cwd=job["cwd"], env=job["env"], stdout=log, stderr=log, check=False)
    return done.returncode


def main():
    code = 125
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        code = run_job()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):  # as the first process we must not end by it
        traceback.print_exc()
        sys.stderr.flush()
    try:
        Path("/mnt/rc").write_text(str(code))
        os.sync()
    finally:
        ctypes.CDLL(None).reboot(_POWER_OFF)


if __name__ == "__main__" and os.getpid() == 1:
    main()
