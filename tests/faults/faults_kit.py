"""A run folder made by the real engine against a server that misbehaves in a known way, and what trust says of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field

from replay_kit import body
from replay_server import truth_server

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.summary import build
from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.spool import SpoolWriter
from pddbench.runfolder import finish, schema
from pddbench.runfolder.load import load


@dataclass
class Arm:
    """One arm of a planted run; `url` instead of `reply` for a server of one's own."""

    plan: object
    reply: object = None
    url: str | None = None
    target: dict = field(default_factory=dict)
    bodies: object = body
    facts: dict = field(default_factory=dict)


async def play(folder, arms, **manifest):
    """Run every arm, write the manifest; the data and the summary."""
    for name, arm in arms.items():
        async with truth_server(arm.reply) as server:
            await record(folder, name, arm, arm.url or server.url)
    facts = {"schema_version": schema.SCHEMA_VERSION, "name": "planted", "output": "exact", "timing": "think",
             "salts": {"1": "x"}, "repeats": 1, "order": [[name, 1] for name in arms], "slo": {}}  # fmt: skip
    facts["arms"] = {name: {"block_tokens": 1, "speed": 1.0, **arm.facts} for name, arm in arms.items()}
    (folder / "manifest.json").write_text(json.dumps(facts | manifest))
    dataset = Dataset(load(folder))
    return dataset, build(dataset)


async def record(folder, name, arm, url):
    """One arm into the folder; its spool is kept beside as NAME.spool."""
    (folder / "spool").mkdir(exist_ok=True)
    finish.save_plan(folder, 1, arm.plan)
    finish.save_arm(folder, name, 1, 1.0, 1)
    path = finish.spool_path(folder, name, 1)
    spool = SpoolWriter(path, name, 1, len(arm.plan.requests))
    try:
        await replay(ReplayJob(arm.plan, Target(url=url, **arm.target), arm.bodies, spool))
    finally:
        spool.close()
    shutil.copy(path, folder / f"{name}.spool")
    finish.finish_arm(folder, name, 1)


def named(summary, level="invalid"):
    """Names of the rules that fired."""
    return {finding.rule for finding in summary.findings if finding.level == level}


@contextmanager
def starved(neighbours):
    """This process on one core, with busy neighbours on the same."""
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, one))
        for _ in range(neighbours)
    ]
    os.sched_setaffinity(0, one)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for process in busy:
            process.kill()
            process.wait()
