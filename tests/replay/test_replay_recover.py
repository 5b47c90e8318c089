"""A run that is killed or signalled, for real, and what is left of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from replay_kit import MS, plan, request
from replay_server import stream, truth_server
from replay_streams import last, text

from pddbench.cli.recover import recover as command
from pddbench.errors import InputError
from pddbench.replay.native.compiled import chosen
from pddbench.runfolder import finish
from pddbench.runfolder.recover import recover

CHILD = """
import asyncio, signal, sys
from pathlib import Path
from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.spool import SpoolWriter
from pddbench.runfolder import finish

async def main(folder, url):
    plan = finish.load_plan(folder, 1)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    spool = SpoolWriter(finish.spool_path(folder, "a", 1), "a", 1, len(plan.requests))
    job = ReplayJob(plan, Target(url=url), lambda i: b"{}", spool, stop=stop)
    end = await replay(job)
    spool.close()
    finish.finish_arm(folder, "a", 1)
    return 130 if end.status == "interrupted" else 0

sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2])))
"""


def folder_of(path: Path, the_plan) -> Path:
    """A run folder as the runner makes it before traffic."""
    (path / "manifest.json").write_text(json.dumps({"name": "x", "partial": False, "order": [["a", 1], ["b", 1]]}))
    finish.save_plan(path, 1, the_plan)
    finish.save_arm(path, "a", 1, 1.0, None)
    return path


async def child_until(folder: Path, server, condition, number: int) -> int:
    """Start a replay in a process of its own, wait for a condition, send it a signal; its exit code."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, str(folder), server.url)
    deadline = time.monotonic() + 60
    while not condition():
        assert child.returncode is None, "the child ended too early"
        assert time.monotonic() < deadline, "the child never got there"
        await asyncio.sleep(0.02)
    child.send_signal(number)
    return await child.wait()


def reply(seen):
    """r0 and r1 answer, r2 streams slowly for ever."""
    if seen.request_id == "r2":
        return stream([text("x")] * 10_000, gap_s=0.02)
    return stream([text("a"), text("b", "stop"), last(2)])


REQUESTS = [request(0), request(1, parents=(0,)), request(2), request(3, start_ns=3600_000 * MS)]


@pytest.mark.slow
async def test_sigkill_loses_at_most_the_last_second(tmp_path):
    """Without it a run that was killed would be lost, or more of it than its last second."""
    folder = folder_of(tmp_path, plan(*REQUESTS))
    async with truth_server(reply) as server:
        code = await child_until(
            folder, server, lambda: len(server.seen) == 3 and len(server.of("r2").wrote_ns) > 150, signal.SIGKILL
        )
        killed_ns = time.monotonic_ns()
        written = len([t for t in server.of("r2").wrote_ns if t < killed_ns - 1_000_000_000])
    assert code == -signal.SIGKILL
    (found,) = recover(folder)
    assert (found.planned, found.sent, found.in_flight, found.error) == (4, 3, 1, None)
    rows = pd.read_parquet(folder / "requests", dtype_backend="pyarrow")
    assert rows["outcome"].tolist() == ["ok", "ok", "cancelled", "not_sent"]
    assert rows.loc[2, "chunks"] >= written > 50
    assert rows.loc[3, "error"] == "run_killed"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["partial"] is True
    assert manifest["runs"][0]["exact_timer"] is True, "else a late loop voids a recovered run that it did not touch"
    assert manifest["runs"][0]["reader"] == chosen()
    assert not (folder / "spool").exists()


@pytest.mark.slow
async def test_sigint_saves_everything(tmp_path):
    """Without it Ctrl-C would lose the run."""
    folder = folder_of(tmp_path, plan(*REQUESTS))
    async with truth_server(reply) as server:
        code = await child_until(
            folder, server, lambda: len(server.seen) == 3 and len(server.of("r2").wrote_ns) > 10, signal.SIGINT
        )
    assert code == 130
    rows = pd.read_parquet(folder / "requests", dtype_backend="pyarrow")
    assert rows["outcome"].tolist() == ["ok", "ok", "cancelled", "not_sent"]
    assert rows.loc[3, "error"] == "interrupted"
    assert rows.loc[2, "chunks"] > 5


def spooled(folder: Path, arm: str, size: int | None = None, reader: str | None = None) -> None:
    """A spool of `arm` in a folder, cut at `size`."""
    from pddbench.replay import frames
    from pddbench.replay.spool import SpoolWriter

    finish.save_arm(folder, arm, 1, 1.0, None)
    path = finish.spool_path(folder, arm, 1)
    spool = SpoolWriter(path, arm, 1, 1)
    spool.write(frames.Zero(1, reader=reader))
    spool.close()
    if size is not None:
        os.truncate(path, size)


def test_the_command(tmp_path):
    """Without it one torn arm would keep the others from being recovered, or nobody be told."""
    folder = folder_of(tmp_path, plan(request(0)))
    spooled(folder, "a")
    spooled(folder, "b", size=0)
    done = CliRunner().invoke(command, [str(folder)])
    assert done.exit_code == 0, done.output
    assert "a.1: recovered 0 of 1 requests" in done.output
    assert "b.1: not recovered: the spool" in done.output
    assert "never began: b.1" in done.output
    (run,) = json.loads((folder / "manifest.json").read_text())["runs"]
    assert run["reader"] == "unknown", "a spool of an earlier version does not say it"
    assert finish.spools(folder) == [("b", 1)], "what could not be recovered is not thrown away"
    again = CliRunner().invoke(command, [str(folder)], catch_exceptions=True)
    assert again.exit_code != 0
    as_json = folder_of(tmp_path, plan(request(0)))
    spooled(as_json, "a")
    lines = CliRunner().invoke(command, [str(as_json), "--json"])
    assert json.loads(lines.output)["recovered"][0]["planned"] == 1


def test_nothing_to_recover_says_what_there_is(tmp_path):
    """It said that nothing was there of a run stopped between two arms, and not how to see the first."""
    folder = folder_of(tmp_path, plan(request(0)))
    none = CliRunner().invoke(command, [str(folder)])
    assert none.output == "nothing to recover: no run left anything in this folder; never began: a.1, b.1\n"
    spooled(folder_of(tmp_path, plan(request(0))), "a")
    recover(folder)
    done = CliRunner().invoke(command, [str(folder)])
    assert done.exit_code == 0
    assert done.output == (
        f"nothing to recover: what began has all its rows (a.1), and `pddbench report {folder}` tells what they found; "
        "never began: b.1\n"
    )


def test_the_reader_is_known_of_a_killed_run(tmp_path):
    """The report's first line did not say who had read a recovered run."""
    folder = folder_of(tmp_path, plan(request(0)))
    spooled(folder, "a", reader="native")
    assert recover(folder)[0].reader == "native"
    assert json.loads((folder / "manifest.json").read_text())["runs"][0]["reader"] == "native"


def test_not_a_run_folder(tmp_path):
    """Without it a wrong path would be a traceback."""
    with pytest.raises(InputError, match="is not a run folder"):
        recover(tmp_path)


def test_a_run_that_is_still_going_on(tmp_path):
    """Without it recovering a live run would take the spool from under it."""
    folder = folder_of(tmp_path, plan(request(0)))
    code = (
        "import sys; from pathlib import Path; from pddbench.replay.spool import SpoolWriter;"
        "SpoolWriter(Path(sys.argv[1]), 'a', 1, 1); print('ready', flush=True); sys.stdin.read()"
    )
    path = finish.spool_path(folder, "a", 1)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(InputError, match="still going on"):
            recover(folder)
        while not path.stat().st_size:  # its thread writes the first frame when it gets a turn
            time.sleep(0.01)
        child.stdin.close()
    assert recover(folder)[0].error is None
