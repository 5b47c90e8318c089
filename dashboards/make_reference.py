"""Makes `results/reference` and `results/reference-capacity`: the quickstart's three arms in virtual time, and the
search for what each of them carries. Their runs are bit for bit the same on every machine.

    .venv/bin/python dashboards/make_reference.py

Nothing of this machine stays in it: paths are relative to the repository, and the host is left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "results" / "reference"
SEARCH = ROOT / "results" / "reference-capacity"
KEPT = ("manifest.json", "requests", "events", "health")
OF_THIS_MACHINE = ("host", "git", "calibration", "clocks")


def search() -> None:
    """The capacity search, of which only its own file is kept (page and plot come from it)."""
    words = ["capacity", "workloads/quickstart/experiment.toml", "--simulate", "--start-rate", "1.7", "--run-s", "120",
             "--warmup-s", "15", "--budget", "24", "--out", str(SEARCH.relative_to(ROOT))]  # fmt: skip
    shutil.rmtree(SEARCH, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "pddbench", *words, "--quiet"], cwd=ROOT, check=True)
    for entry in SEARCH.iterdir():
        if entry.name != "capacity.json":
            entry.unlink()


def main() -> None:
    """Simulate, keep rows and manifest, take this machine out of the manifest."""
    words = ["simulate", "workloads/quickstart/experiment.toml", "--out", "results/reference"]
    shutil.rmtree(TARGET, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "pddbench", *words, "--quiet"], cwd=ROOT, check=True)
    for entry in TARGET.iterdir():
        if entry.name not in KEPT:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    file = TARGET / "manifest.json"
    manifest = json.loads(file.read_text().replace(f"{ROOT}/", ""))
    for name in OF_THIS_MACHINE:
        manifest.pop(name, None)
    file.write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
    search()
