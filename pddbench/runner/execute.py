"""Runs the arms one after the other: launch, preflight, replay, save. Everything that sends load starts here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pddbench.errors import PddbenchError
from pddbench.runner import manifest
from pddbench.runner.order import arm_salts
from pddbench.runner.preflight import preflight, target_of, writer_of
from pddbench.runner.prepare import ArmSetup, Prepared
from pddbench.runner.progress import Progress, make_progress
from pddbench.runner.signals import Stop, catching

if TYPE_CHECKING:
    from pddbench.deploy.emulator.launch import Deployment
    from pddbench.replay.engine import ReplayEnd

T = TypeVar("T")


def execute(
    prepared: Prepared, folder: Path, facts: dict[str, Any], salts: dict[int, str], *, quiet: bool
) -> int | None:
    """Run every arm and repeat; returns the signal's exit code if one stopped it. Keeps `facts` (the manifest) up."""
    from pddbench.runfolder.finish import clear, save_plan

    for repeat in salts:
        save_plan(folder, repeat, prepared.plan)
    setups = {setup.name: setup for setup in prepared.arms}
    with catching() as stop:
        try:
            _preflight_external(prepared, folder, facts, stop)
            with make_progress(quiet, len(prepared.order)) as progress:
                for arm, repeat in prepared.order:
                    if stop.number is not None:
                        break
                    progress.begin(arm, repeat)
                    salt = arm_salts(prepared.experiment.arm, salts[repeat])[arm]
                    _Run(prepared, setups[arm], repeat, salt, folder, facts, progress, stop).go()
        except PddbenchError:
            facts["partial"] = True
            facts["finished_utc"] = manifest.utc_now()
            manifest.write(folder, facts)
            raise
        clear(folder)
        if stop.number is not None:
            facts["partial"], facts["signal"] = True, stop.number
        return stop.exit_code


def execute_simulated(
    prepared: Prepared,
    folder: Path,
    facts: dict[str, Any],
    salts: dict[int, str],
    *,
    quiet: bool,
    by_token: bool,
    gaps: bool,
) -> int | None:
    """Every arm and repeat in virtual time; returns the signal's exit code if one stopped it between two of them.

    `by_token`: every token is made and goes through the live reply code; otherwise they are counted. `gaps`: the table
    `events` is written.
    """
    from pddbench.runfolder.finish import clear, save_plan
    from pddbench.runfolder.roles import RoleLog
    from pddbench.runner.simulate import counted_run, save_counted, spool_arm

    setups = {setup.name: setup for setup in prepared.arms}
    with catching() as stop, make_progress(quiet, len(prepared.order)) as progress:
        for arm, repeat in prepared.order:
            if stop.number is not None:
                facts["partial"], facts["signal"] = True, stop.number
                break
            progress.begin(arm, repeat)
            setup = setups[arm]
            assert setup.spec is not None
            if by_token:
                save_plan(folder, repeat, prepared.plan)
                bodies = writer_of(setup, prepared.plan, salts[repeat])
                spool_arm(folder, arm, repeat, setup.spec, prepared.plan, bodies, setup.chat)
            else:
                roles = RoleLog()
                run = counted_run(setup, prepared.plan, prepared.experiment, roles)
                save_counted(folder, arm, repeat, run, roles, gaps)
            facts["runs"].append({"arm": arm, "repeat": repeat, "status": "complete"})
            manifest.write(folder, facts)
        clear(folder)
        return stop.exit_code


def in_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on uvloop where it is installed, else on asyncio's own loop."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work())


def _preflight_external(prepared: Prepared, folder: Path, facts: dict[str, Any], stop: Stop) -> None:
    """All real endpoints are asked before the first one gets load."""
    for setup in prepared.arms:
        if setup.url is not None and stop.number is None:
            _preflight(setup, setup.url, folder, facts, stop)


def _preflight(setup: ArmSetup, url: str, folder: Path, facts: dict[str, Any], stop: Stop) -> None:
    """Probe an arm; a signal ends the probe at once (`stop` tells the caller)."""
    found = in_loop(lambda: _unless_stopped(preflight(setup, url), stop))
    if found is None:
        return
    facts["arms"][setup.name] |= {"preflight": found, "block_tokens": setup.block_tokens}
    manifest.write(folder, facts)


async def _unless_stopped(work: Coroutine[Any, Any, T], stop: Stop) -> T | None:
    """The result of `work`; None when a signal comes first, which cancels it."""
    with stop.watched() as event:
        task, signalled = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
        await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None


class _Run:
    """One arm, one repeat."""

    def __init__(
        self,
        prepared: Prepared,
        setup: ArmSetup,
        repeat: int,
        salt: str,
        folder: Path,
        facts: dict[str, Any],
        progress: Progress,
        stop: Stop,
    ) -> None:
        self._prepared, self._setup, self._repeat, self._salt = prepared, setup, repeat, salt
        self._folder, self._facts, self._progress, self._stop = folder, facts, progress, stop

    def go(self) -> None:
        """Launch what must be launched, replay, and put the result into the run folder."""
        from pddbench.runfolder.finish import finish_arm, save_arm, spool_path

        setup = self._setup
        with _serving(setup) as (url, deployment):
            if deployment is not None:
                _preflight(setup, url, self._folder, self._facts, self._stop)
            if self._stop.number is not None:
                return
            save_arm(self._folder, setup.name, self._repeat, setup.speed, setup.block_tokens)
            started_utc = manifest.utc_now()
            try:
                end = self._scraped(url) if deployment is None else in_loop(lambda: self._replay(url))
                if deployment is not None:
                    _save_server(self._folder, setup.name, self._repeat, end.t0_ns, deployment)
            finally:
                if spool_path(self._folder, setup.name, self._repeat).exists():
                    finish_arm(self._folder, setup.name, self._repeat)
        self._facts["runs"].append(self._record(started_utc, end))
        manifest.write(self._folder, self._facts)

    def _scraped(self, url: str) -> ReplayEnd:
        """Replay against a real endpoint, with its own counters before, during and after."""
        from pddbench.deploy import scrape

        setup = self._setup
        with scrape.Scraper(scrape.metrics_url(setup.arm.metrics_url, url)) as scraper:
            end = in_loop(lambda: self._replay(url))
        scrape.save(scraper, self._folder, setup.name, self._repeat, end.t0_ns or 0)
        self._facts["arms"][setup.name]["metrics"] = scraper.facts
        return end

    async def _replay(self, url: str) -> ReplayEnd:
        from pddbench.replay.engine import ReplayJob, replay
        from pddbench.replay.spool import SpoolWriter
        from pddbench.runfolder.finish import spool_path

        work, setup, plan = self._prepared.experiment.workload, self._setup, self._prepared.plan
        target = target_of(
            setup,
            url,
            stall_timeout_s=work.stall_timeout_s,
            request_limit_s=work.request_limit_s,
            max_start_rate=work.max_start_rate,
            max_concurrency=work.max_concurrency,
        )
        path = spool_path(self._folder, setup.name, self._repeat)
        spool = SpoolWriter(path, setup.name, self._repeat, len(plan.requests))
        try:
            with self._stop.watched() as event:
                return await replay(
                    ReplayJob(
                        plan=plan,
                        target=target,
                        bodies=writer_of(setup, plan, self._salt),
                        spool=spool,
                        speed=setup.speed,
                        on_parent_failure=work.on_parent_failure,
                        progress=self._progress.update,
                        stop=event,
                    )
                )
        finally:
            spool.close()

    def _record(self, started_utc: str, end: ReplayEnd) -> dict[str, Any]:
        return {
            "arm": self._setup.name,
            "repeat": self._repeat,
            "started_utc": started_utc,
            "finished_utc": manifest.utc_now(),
            "status": end.status,
            "t0_monotonic_ns": end.t0_ns,
            "late_bodies": end.late_bodies,
            "exact_timer": end.exact_timer,
        }


@contextmanager
def _serving(setup: ArmSetup) -> Iterator[tuple[str, Deployment | None]]:
    """The arm's URL; an emulated arm is up for as long as the context lasts."""
    if setup.spec is None:
        yield str(setup.url), None
        return
    from pddbench.deploy.emulator.launch import launch

    endpoint = "/v1/chat/completions" if setup.chat else "/v1/completions"
    with launch(setup.spec) as deployment:
        yield deployment.url + endpoint, deployment


def _save_server(folder: Path, arm: str, repeat: int, t0_ns: int | None, deployment: Deployment) -> None:
    """What the deployment's processes say of themselves at the end of a run."""
    import time

    import pyarrow as pa
    import pyarrow.parquet as pq

    from pddbench.runfolder.schema import SERVER, arrow_schema

    now_ns = time.monotonic_ns() - (t0_ns or 0)
    rows = [
        {"arm": arm, "repeat": repeat, "t_ns": now_ns, "process": process, "metric": metric, "value": value}
        for process, metric, value in deployment.stats()
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(SERVER))
    pq.write_table(table, folder / "server" / f"{arm}.{repeat}.parquet")
