"""Makes `results/reference`: the quickstart's three arms in virtual time, bit for bit the same on every machine.

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
KEPT = ("manifest.json", "requests", "events", "health")
OF_THIS_MACHINE = ("host", "git", "calibration", "clocks")


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
