"""Runs the arms one after the other: launch, preflight, replay, save. Everything that sends load starts here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pddbench.deploy.children import LaunchStopped
from pddbench.errors import PddbenchError
from pddbench.replay.split import share_of_places, share_of_rate
from pddbench.runner import manifest
from pddbench.runner.order import arm_salts
from pddbench.runner.preflight import preflight, target_of
from pddbench.runner.prepare import ArmSetup, Prepared
from pddbench.runner.progress import Progress
from pddbench.runner.role_changes import role_changes
from pddbench.runner.signals import Stop
from pddbench.runner.writer import settings_of, writer_of
from pddbench.wan.steps import applied_on_time

if TYPE_CHECKING:
    from pddbench.deploy.emulator.launch import Deployment
    from pddbench.deploy.minipdd.launch import MiniDeployment
    from pddbench.replay.engine import ReplayEnd
    from pddbench.replay.exchange import Target

T = TypeVar("T")


def execute(
    prepared: Prepared, folder: Path, facts: dict[str, Any], salts: dict[int, str], stop: Stop, progress: Progress
) -> None:
    """Run every arm and repeat until `stop`. Keeps `facts` (the manifest) up."""
    from pddbench.runfolder.finish import clear, save_plan

    for repeat in salts:
        save_plan(folder, repeat, prepared.plan)
    setups = {setup.name: setup for setup in prepared.arms}
    try:
        _preflight_external(prepared, folder, facts, stop)
        with progress:
            for arm, repeat in prepared.order:
                if stop.number is not None:
                    break
                progress.begin(arm, repeat)
                salt = arm_salts(prepared.experiment.arm, salts[repeat])[arm]
                run = _Run(prepared, setups[arm], repeat, salt, folder, facts, progress, stop)
                with suppress(LaunchStopped):
                    run.go()
    except PddbenchError:
        clear(folder)
        facts["partial"] = True
        facts["finished_utc"] = manifest.utc_now()
        manifest.write(folder, facts)
        raise
    clear(folder)
    if stop.number is not None:
        facts["partial"], facts["signal"] = True, stop.number


def execute_simulated(
    prepared: Prepared,
    folder: Path,
    facts: dict[str, Any],
    salts: dict[int, str],
    stop: Stop,
    progress: Progress,
    *,
    by_token: bool,
    gaps: bool,
) -> None:
    """Every arm and repeat in virtual time, until `stop` between two of them.

    `by_token`: every token is made and goes through the live reply code, as live history needs it; otherwise they are
    counted. `gaps`: the table `events` is written.
    """
    from pddbench.deploy.emulator.observe import EventLog
    from pddbench.runfolder.finish import clear, save_plan
    from pddbench.runner.simulate import counted_run, save_counted, spool_arm
    from pddbench.runner.virtual_client import Manners
    from pddbench.workload.history import Replies

    setups = {setup.name: setup for setup in prepared.arms}
    with progress:
        for arm, repeat in prepared.order:
            if stop.number is not None:
                facts["partial"], facts["signal"] = True, stop.number
                break
            progress.begin(arm, repeat)
            setup = setups[arm]
            assert setup.spec is not None
            if by_token or prepared.plan.history == "live":
                save_plan(folder, repeat, prepared.plan)
                replies = Replies(prepared.plan) if prepared.plan.history == "live" else None
                bodies = writer_of(setup, prepared.plan, salts[repeat], replies)
                manners = Manners.of(prepared.experiment.workload)
                t0_ns = spool_arm(folder, arm, repeat, setup.spec, prepared.plan, bodies, setup.chat, replies, manners)
            else:
                roles = EventLog()
                run = counted_run(setup, prepared.plan, prepared.experiment, roles)
                save_counted(folder, arm, repeat, run, roles, gaps)
                t0_ns = run.t0_ns
                del run, roles  # half a gigabyte an hour of a large deployment, before the next arm takes as much
            record: dict[str, Any] = {"arm": arm, "repeat": repeat, "status": "complete"}
            if setup.spec.changes:
                zero_s = t0_ns / 1e9
                end_s = zero_s + _end_s(folder, arm, repeat)
                record["role_changes"] = role_changes(setup.spec.changes, (), zero_s, end_s)
            if setup.spec.link_steps:
                end_s = _end_s(folder, arm, repeat)
                reached = [step for step in setup.spec.link_steps if step.at_s <= end_s]
                record |= {"link_changes": [applied_on_time(step) for step in reached]} if reached else {}
            facts["runs"].append(record)
            manifest.write(folder, facts)
        clear(folder)


def _end_s(folder: Path, arm: str, repeat: int) -> float:
    """When the last request of a run in virtual time ended, seconds after its zero; 0 when none did."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = pq.read_table(folder / "requests" / f"{arm}.{repeat}.parquet", columns=["end_ns"])
    end_ns = pc.max(rows["end_ns"]).as_py()
    return 0.0 if end_ns is None else float(end_ns) / 1e9


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
        self._on_zero: Callable[[int], None] = lambda t0_ns: None

    def go(self) -> None:
        """Launch what must be launched, replay, and put the result into the run folder."""
        from pddbench.runfolder.finish import finish_arm, save_arm, spool_paths

        setup = self._setup
        link: dict[str, Any] | None = None
        changes: list[dict[str, Any]] = []
        lost: list[dict[str, Any]] = []
        with _serving(setup, self._stop) as (url, deployment):
            if deployment is not None:
                self._on_zero = deployment.begin_events
                _warn_of_link(setup.name, deployment)
                _preflight(setup, url, self._folder, self._facts, self._stop)
            if self._stop.number is not None:
                return
            save_arm(self._folder, setup.name, self._repeat, setup.speed, setup.block_tokens, self._prepared.workers)
            if setup.mini is not None and deployment is not None:
                self._facts["arms"][setup.name]["started"] = deployment.info
            started_utc = manifest.utc_now()
            try:
                end = self._scraped(url) if deployment is None else in_loop(lambda: self._replay(url))
                if deployment is not None:
                    figures = deployment.stats()
                    lost = self._save_roles(deployment, end.t0_ns)
                    link = self._end_link(deployment, figures)
                    changes = deployment.link_changes(figures)
                    _save_server(self._folder, setup.name, self._repeat, end.t0_ns, figures)
            finally:
                if spool_paths(self._folder, setup.name, self._repeat):
                    finish_arm(self._folder, setup.name, self._repeat)
        found = ({} if link is None else {"link": link}) | ({"link_changes": changes} if changes else {})
        found |= {"role_changes": lost} if lost else {}
        self._facts["runs"].append(self._record(started_utc, end) | found)
        manifest.write(self._folder, self._facts)

    def _end_link(
        self, deployment: Deployment | MiniDeployment, figures: list[tuple[str, str, float]]
    ) -> dict[str, Any] | None:
        """The link measured again, and replies of real servers compared with a single process unless stopped."""
        from pddbench.deploy.minipdd.launch import MiniDeployment

        link = deployment.end_link(load=self._stop.number is None)
        if isinstance(deployment, MiniDeployment):
            self._progress.say("comparing its replies with those of a single process")
            figures += deployment.exactness(lambda: self._stop.number is not None)
        return link

    def _save_roles(self, deployment: Deployment | MiniDeployment, t0_ns: int | None) -> list[dict[str, Any]]:
        """What each role of an emulated deployment did, for swim-lanes; its changes are returned."""
        from pddbench.deploy.minipdd.launch import MiniDeployment
        from pddbench.runfolder.roles import save_roles
        from pddbench.runner.role_ids import ids_by_rid

        if isinstance(deployment, MiniDeployment) or t0_ns is None:
            return []
        told = deployment.roles()
        if dropped := sum(part.dropped for part in told.parts):
            self._progress.say(f"{self._setup.name}: {dropped:,} events of roles had no room: swim-lanes end early")
        path = self._folder / "roles" / f"{self._setup.name}.{self._repeat}.parquet"
        ids = ids_by_rid(self._prepared.plan, told.request_ids)
        zero_ns = round((t0_ns - told.epoch_ns) * self._setup.speed)
        save_roles(path, self._setup.name, self._repeat, told.parts, ids, zero_ns)
        return role_changes(deployment.spec.changes, told.posted, zero_ns / 1e9, told.now_s)

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
        with self._stop.watched() as event:
            if self._prepared.workers > 1:
                return await self._by_workers(url, event)
            return await self._here(url, event)

    def _target(self, url: str, worker: int = 0) -> Target:
        """Where requests go, with the brakes, or a worker's part of them."""
        work, workers = self._prepared.experiment.workload, self._prepared.workers
        return target_of(
            self._setup,
            url,
            stall_timeout_s=work.stall_timeout_s,
            request_limit_s=work.request_limit_s,
            max_start_rate=share_of_rate(work.max_start_rate, workers),
            max_concurrency=share_of_places(work.max_concurrency, workers, worker),
        )

    async def _here(self, url: str, stop: asyncio.Event) -> ReplayEnd:
        """Replay in this process."""
        from pddbench.replay.engine import ReplayJob, replay
        from pddbench.replay.spool import SpoolWriter
        from pddbench.runfolder.finish import spool_path
        from pddbench.workload.history import Replies

        setup, plan = self._setup, self._prepared.plan
        path = spool_path(self._folder, setup.name, self._repeat)
        spool = SpoolWriter(path, setup.name, self._repeat, len(plan.requests))
        replies = Replies(plan) if plan.history == "live" else None
        try:
            return await replay(
                ReplayJob(
                    plan=plan,
                    target=self._target(url),
                    bodies=writer_of(setup, plan, self._salt, replies),
                    spool=spool,
                    speed=setup.speed,
                    on_parent_failure=self._prepared.experiment.workload.parent_failure,
                    progress=self._progress.update,
                    stop=stop,
                    replies=replies,
                    needs_ids=setup.token_ids,
                    on_zero=self._on_zero,
                )
            )
        finally:
            spool.close()

    async def _by_workers(self, url: str, stop: asyncio.Event) -> ReplayEnd:
        """Replay in several processes."""
        from pddbench.runner.worker import WorkerJob
        from pddbench.runner.workers import replay_by_workers

        setup, workers = self._setup, self._prepared.workers
        jobs = [
            WorkerJob(
                folder=str(self._folder.resolve()),
                arm=setup.name,
                repeat=self._repeat,
                worker=worker,
                workers=workers,
                target=self._target(url, worker),
                writer=settings_of(setup),
                salt=self._salt,
                speed=setup.speed,
                on_parent_failure=self._prepared.experiment.workload.parent_failure,
            )
            for worker in range(workers)
        ]
        return await replay_by_workers(jobs, stop, self._on_zero)

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
            "reader": end.reader,
            "workers": self._prepared.workers,
        }


@contextmanager
def _serving(setup: ArmSetup, stop: Stop) -> Iterator[tuple[str, Deployment | MiniDeployment | None]]:
    """The arm's URL; an arm that is started here is up for as long as the context lasts. A signal ends the launch of
    an emulated one at once, and raises `LaunchStopped`."""  # fmt: skip
    if setup.spec is None and setup.mini is None:
        yield str(setup.url), None
        return
    endpoint = "/v1/chat/completions" if setup.chat else "/v1/completions"
    with _launched(setup, stop) as deployment:
        yield deployment.url + endpoint, deployment


def _launched(setup: ArmSetup, stop: Stop) -> Deployment | MiniDeployment:
    if setup.mini is not None:
        from pddbench.deploy.minipdd.launch import MiniDeployment

        return MiniDeployment(setup.mini, lambda: stop.number is not None)
    from pddbench.deploy.emulator.launch import launch

    assert setup.spec is not None
    return launch(setup.spec, lambda: stop.number is not None, roles=True)


def _warn_of_link(arm: str, deployment: Deployment | MiniDeployment) -> None:
    """A link that is wrong from the start will void the run: said at once, so that nobody waits for that."""
    for problem in deployment.link_problems:
        click.echo(f"{arm}: the WAN link is not as asked, the run will be invalid: {problem}", err=True)


def _save_server(folder: Path, arm: str, repeat: int, t0_ns: int | None, figures: list[tuple[str, str, float]]) -> None:
    """What the deployment's processes say of themselves at the end of a run."""
    import time

    import pyarrow as pa
    import pyarrow.parquet as pq

    from pddbench.runfolder.schema import SERVER, arrow_schema

    now_ns = time.monotonic_ns() - (t0_ns or 0)
    rows = [
        {"arm": arm, "repeat": repeat, "t_ns": now_ns, "process": process, "metric": metric, "value": value}
        for process, metric, value in figures
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(SERVER))
    pq.write_table(table, folder / "server" / f"{arm}.{repeat}.parquet")
