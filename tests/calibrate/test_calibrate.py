"""Calibration: true figures, kept for this user, quoted in runs and believed only on the host they were taken on."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pddbench.calibrate import store
from pddbench.calibrate.measure import Level, Quantiles, measure
from pddbench.cli.calibrate import calibrate


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A user's cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def level(events_s, within=True):
    """A level as if measured."""
    some = Quantiles(0.1, 0.2, 0.3)
    return Level(events_s=events_s, streams=10, starts_s=5.0, seen_events_s=events_s, failed=0, ttft_used=some,
                 ttft_user=some, ttft_kernel=some, gap_used=some, drift=some, cpu_share=0.1, server_late_p99_ms=0.1,
                 within=within)  # fmt: skip


@pytest.mark.slow
def test_a_real_calibration_sees_every_event():
    """Without it the error bar would be that of some events, or of another code path than a run's."""
    (only,) = measure(error_ms=10_000, life_s=1.0, loads=[500])
    assert (only.failed, only.within) == (0, True)
    for error in (only.ttft_used, only.ttft_user, only.ttft_kernel, only.gap_used, only.drift):
        assert error.p50 is not None
    assert only.ttft_kernel.p50 <= only.ttft_user.p50, "the kernel saw the bytes before we did"
    assert only.ttft_user.p50 > 0, "nothing is seen before it was written"


@pytest.mark.slow
def test_workers_are_calibrated_together():
    """Without it `--workers` would be vouched for by figures of one process, or by a part of the events."""
    (only,) = measure(error_ms=10_000, life_s=1.0, loads=[500], workers=2)
    assert (only.failed, only.within, only.streams) == (0, True, 20)
    assert only.ttft_kernel.p50 <= only.ttft_user.p50 and only.cpu_share > 0


@pytest.mark.slow
def test_an_error_that_cannot_hold_is_said():
    """Without it a calibration could not fail, and would be worth nothing."""
    done = CliRunner().invoke(calibrate, ["--error-ms", "0.001", "--seconds", "1", "--max-events", "500"],
                              standalone_mode=False)  # fmt: skip
    assert "does not even hold at 500" in done.output
    assert store.quoted()["events_s"] == 0
    assert "is calibrated up to 0" in store.warning(100, 10, 10.0)


def test_kept_quoted_and_compared():
    """Without it a workload beyond the calibrated load would run without a word."""
    assert "not calibrated" in store.warning(1, 1, 1.0)
    store.save(store.new([level(1000), level(2000), level(5000, within=False), level(9000)], 5.0, "2026-01-01"))
    quoted = store.quoted()
    assert (quoted["events_s"], quoted["limit_found"], quoted["ttft_error_p99_ms"]) == (2000, True, 0.2)
    assert store.warning(19_000, 10, 10.0) is None
    assert "about 2,100 events a second are planned" in store.warning(21_000, 10, 10.0)
    assert "about 6 starts a second are planned" in store.warning(10, 60, 10.0)


def test_each_number_of_workers_has_its_own():
    """Without it the limit of one process would be quoted for four, or the other way round."""
    store.save(store.new([level(1000)], 5.0, "2026-01-01"))
    assert "`pddbench calibrate --workers 2`" in store.warning(1, 1, 1.0, workers=2)
    store.save(store.new([level(2000)], 5.0, "2026-01-01", workers=2))
    assert (store.quoted(2)["workers"], store.quoted(2)["events_s"], store.quoted()["events_s"]) == (2, 2000, 1000)
    assert "with 2 workers" in store.warning(30_000, 1, 10.0, workers=2)


def test_another_hosts_calibration_is_not_believed(cache):
    """Without it a cache on a shared home would vouch for a slower machine."""
    path = store.save(store.new([level(1000)], 5.0, "2026-01-01"))
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"host": "elsewhere"}))
    assert store.load() is None
    path.write_text("{")
    assert store.load() is None
