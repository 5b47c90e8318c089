"""Every rule of trust: a planted fault fires it, by name and with its figure, and a healthy run does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.analyze import trust, trust_timing
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.summary import build
from pddbench.errors import InputError
from pddbench.replay.exchange import OWN_FAILURE
from pddbench.runfolder.load import load

from .synth import Recipe, fail, make_run


def found(folder, allow=(), **recipe):
    data = Dataset(load(make_run(folder, Recipe(**{"tokens": 12, "turns": 2} | recipe))))
    return {f"{f.rule}:{f.level}": f for f in trust.findings(data, allow)}


def only_pdd(change):
    """An edit that spoils the requests of arm pdd only."""

    def edit(arm, repeat, requests, events, server, health):
        if arm == "pdd":
            change(repeat, requests, events, server, health)

    return edit


def late_sends(repeat, requests, *_):
    for i in range(0, len(requests["sent_ns"]), 50):
        requests["sent_ns"][i] += 6_000_000


def slow_loop(repeat, requests, events, server, health):
    health["loop_lag_ns"] = [[100_000, 7_000_000]] * len(health["t_ns"])


def warm_cache(repeat, requests, *_):
    requests["cached_tokens"][5] = requests["cached_tokens_ceiling"][5] + 65


def short(repeat, requests, *_):
    requests["completion_tokens"][7] -= 1


def truncated_prompts(repeat, requests, *_):
    requests["prompt_tokens"] = [n * 0.9 // 1 for n in requests["input_tokens_planned"]]
    requests["prompt_tokens"] = [int(n) for n in requests["prompt_tokens"]]


def held(repeat, requests, *_):
    requests["throttle_wait_ns"][7] = 2_000_000


def busy(repeat, requests, events, server, health):
    health["cpu_share"][20:25] = [0.9] * 5


TIMES = ("scheduled_ns", "ready_ns", "due_ns", "sent_ns", "first_byte_ns", "first_chunk_ns", "first_token_ns",
         "second_token_ns", "last_token_ns", "end_ns")  # fmt: skip


def late_emulator(repeat, requests, events, server, health):
    server["value"] = [1e5, 11e6]


def other_plan(repeat, requests, *_):
    requests["plan_sha256"][3] = "another"


def backwards(repeat, requests, *_):
    requests["first_token_ns"][3] = requests["sent_ns"][3] - 1


def no_descriptors(repeat, requests, *_):
    fail(requests, 3, "connection")
    requests["error"][3] = f"cannot connect to 127.0.0.1:8000: {OWN_FAILURE}: Too many open files"


def overloaded(repeat, requests, *_):
    """TTFT of each session grows with its arrival, fivefold over the run's last half."""
    sessions = [int(name[1:]) for name in requests["session_id"]]
    for i, s in enumerate(sessions):
        extra = int(max(0, s - 50) * 40e6)
        for name in ("first_byte_ns", "first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns", "end_ns"):
            requests[name][i] += extra


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("send_lag", late_sends),
        ("loop_lag", slow_loop),
        ("hits", warm_cache),
        ("lengths", short),
        ("prompt_lengths", truncated_prompts),
        ("throttle", held),
        ("client_cpu", busy),
        ("emulator_late", late_emulator),
        ("clock", backwards),
        ("own_failures", no_descriptors),
        ("backlog", overloaded),
    ],
)
def test_planted_fault_fires_its_rule(tmp_path, rule, change):
    """Each fault must void the run under its own name, for its arm, with figures and advice; allowed, it only warns."""
    got = found(tmp_path / "a", edit=only_pdd(change))
    invalid = {f.rule for f in got.values() if f.level == "invalid"}
    assert invalid == {rule}
    finding = got[f"{rule}:invalid"]
    assert finding.arm == "pdd" or rule == "clock"
    assert finding.measured > finding.limit and finding.advice
    allowed = found(tmp_path / "b", allow=[rule], edit=only_pdd(change))
    assert f"{rule}:invalid" not in allowed and allowed[f"{rule}:warning"].allowed


def test_two_threads_may_take_more_than_a_core(tmp_path):
    """Without it a run on two cores whose reader and interpreter each had time to spare would be void, or one whose
    reader was at its limit pass."""

    def shares(busy_share):
        def change(repeat, requests, events, server, health):
            health["cpu_share"] = [1.3] * len(health["cpu_share"])
            health["busy_share"] = [busy_share] * len(health["cpu_share"])

        return only_pdd(change)

    assert "client_cpu:invalid" not in found(tmp_path / "a", edit=shares(0.7))
    assert found(tmp_path / "b", edit=shares(0.95))["client_cpu:invalid"].measured == pytest.approx(0.95)
    assert "client_cpu:invalid" in found(tmp_path / "c", edit=shares(None)), "a run of the reader in Python"


def stamped(stamps="kernel", connect_ns=(1_000_000, 2_000_000)):
    """A slow loop whose arrivals the kernel stamped; connections took as told, in turns."""

    def edit(arm, repeat, requests, events, server, health):
        n = len(requests["sent_ns"])
        slow_loop(repeat, requests, events, server, health)
        requests["stamps"] = ["kernel"] * (n - 1) + [stamps]
        requests["connect_wait_ns"] = [connect_ns[i % len(connect_ns)] for i in range(n)]
        requests["due_ns"] = [t - w for t, w in zip(requests["sent_ns"], requests["connect_wait_ns"], strict=True)]
        requests["scheduled_ns"] = requests["ready_ns"] = requests["due_ns"]

    return edit


def timed(manifest, exact=True):
    """The manifest of a run paced by a timerfd."""
    manifest["runs"] = [{"arm": arm, "repeat": 0, "exact_timer": exact, "workers": 1} for arm in manifest["arms"]]


def test_a_late_loop_is_no_error_where_the_kernel_stamps(tmp_path):
    """Without it a busy CI machine voids runs whose every time is right; with less of it, wrong times pass as right."""
    few = {"sessions": 20, "repeats": 1}
    good = found(tmp_path / "a", edit=stamped(), manifest=timed, **few)
    assert "loop_lag:invalid" not in good and "in no TTFT" in good["loop_lag:warning"].message
    for n, (edit, manifest) in enumerate(
        [
            (stamped("merged"), timed),  # chunks of different times in one read
            (stamped("mixed"), timed),
            (stamped("user"), timed),
            (stamped(None), timed),
            (stamped(), lambda m: timed(m, exact=False)),  # starts at the loop's own mercy
            (stamped(), lambda m: m.update(runs=[])),  # nobody says how it was paced
            (stamped(connect_ns=(1_000_000, 1_000_000, 7_500_000)), timed),  # connections were noticed late
        ]
    ):
        assert "loop_lag:invalid" in found(tmp_path / f"b{n}", edit=edit, manifest=manifest, **few), n


def test_lags_are_those_of_the_worst_worker(tmp_path):
    """Without it a worker that is late hides behind many that are not, though its requests are in the result."""

    def one_of_ten(arm, repeat, requests, events, server, health):
        n, rows = len(requests["sent_ns"]), len(health["t_ns"])
        requests["worker"] = [int(i % 10 == 3) for i in range(n)]
        late = [i for i in range(n) if i % 10 == 3][::20]
        for i in late:
            requests["sent_ns"][i] += 6_000_000
        assert len(late) / n < 0.01
        health["worker"] = [int(i % 10 == 3) for i in range(rows)]
        health["loop_lag_ns"] = [[100_000] * (1 if w else 9000) + [7_000_000] * w for w in health["worker"]]

    assert {rule for rule in found(tmp_path, edit=one_of_ten) if rule.endswith("invalid")} == {
        "send_lag:invalid", "loop_lag:invalid",
    }  # fmt: skip


def test_plan_bytes_and_salts(tmp_path):
    """Arms with other plans, and repeats without a salt of their own, are not comparable."""
    assert "bytes:invalid" in found(tmp_path / "a", edit=only_pdd(other_plan))
    same = found(tmp_path / "b", manifest=lambda m: m.update(salts={"0": "x", "1": "x"}))
    assert "same salt" in same["salt:invalid"].message
    none = found(tmp_path / "c", manifest=lambda m: m.update(salts={"0": "x"}))
    assert "repeat 1 has no salt" in none["salt:invalid"].message


@pytest.mark.parametrize("seed", range(4))
def test_healthy_run_fires_nothing(tmp_path, seed):
    """A rule that fires on a healthy run teaches people to ignore 98."""
    got = found(tmp_path, seed=seed)
    assert not [f for f in got.values() if f.level == "invalid"]
    assert set(got) == {"coverage_p99:warning"}


def test_backlog_does_not_fire_on_a_ramp(tmp_path):
    """While sessions fill up, latency rises somewhat and levels off: that is load, not a backlog."""

    def ramp(repeat, requests, *_):
        for i, name in enumerate(requests["session_id"]):
            extra = int(150e6 * (1 - np.exp(-int(name[1:]) / 40)))
            for column in ("first_token_ns", "second_token_ns", "last_token_ns", "end_ns"):
                requests[column][i] += extra

    assert "backlog:invalid" not in found(tmp_path, edit=only_pdd(ramp))


def test_backlog_does_not_fire_on_bursts(tmp_path):
    """Traces of whole seconds start a dozen sessions at once; that the last of a burst waits longest is no growth."""

    def bursts(repeat, requests, *_):
        start = {}
        for i, name in enumerate(requests["session_id"]):
            burst, place = divmod(int(name[1:]), 60)  # the last half of 120 sessions is one burst
            moved = 40_000_000_000 * burst - start.setdefault(name, requests["scheduled_ns"][i])
            for column in TIMES:
                requests[column][i] += moved
            for column in ("first_token_ns", "second_token_ns", "last_token_ns", "end_ns"):
                requests[column][i] += place * 30_000_000

    assert "backlog:invalid" not in found(tmp_path, edit=only_pdd(bursts))


def test_lags_are_judged_in_wall_time(tmp_path):
    """At speed 10 a lag of 20 ms of experiment time is 2 ms of ours: fine; the emulator's lateness counts tenfold."""

    def lag(repeat, requests, *_):
        requests["sent_ns"] = [sent + 20_000_000 for sent in requests["sent_ns"]]

    assert "send_lag:invalid" not in found(tmp_path / "a", speed=10.0, edit=only_pdd(lag))
    assert "emulator_late:invalid" in found(tmp_path / "b", speed=10.0)


def test_one_late_request_voids_nothing(tmp_path):
    """A gate on the largest of a few samples would void every short run (TRAPS: never gate on a maximum)."""

    def late(count):
        def edit(repeat, requests, *_):
            for i in range(count):
                requests["sent_ns"][i] += 50_000_000

        return only_pdd(edit)

    assert "send_lag:invalid" not in found(tmp_path / "a", sessions=20, repeats=1, edit=late(1))
    assert "send_lag:invalid" in found(tmp_path / "b", sessions=20, repeats=1, edit=late(2))


def test_throttle_and_hits_have_slack(tmp_path):
    """One block beyond the ceiling, and microseconds in the brake, are no faults."""

    def slack(repeat, requests, *_):
        requests["cached_tokens"][5] = requests["cached_tokens_ceiling"][5] + 64
        requests["throttle_wait_ns"][6] = 50_000

    got = found(tmp_path, edit=only_pdd(slack))
    assert not [f for f in got.values() if f.level == "invalid"]


def test_warnings(tmp_path):
    """What must be said beside the figures is said."""

    def odd(repeat, requests, *_):
        requests["cached_tokens"] = [None] * len(requests["cached_tokens"])
        requests["cached_tokens_possible"] = [n - 200 for n in requests["cached_tokens_possible"]]
        requests["chunks"] = [n - 1 for n in requests["chunks"]]
        requests["first_token_ns"] = [t - 20_000_000 for t in requests["first_token_ns"]]
        requests["first_byte_ns"] = requests["first_chunk_ns"] = requests["first_token_ns"]

    got = found(tmp_path / "a", repeats=1, sessions=90, edit=only_pdd(odd), manifest=lambda m: m.update(partial=True))
    want = ("hits_unreported", "hits_possible", "bundled", "ttft_below_baseline", "order", "coverage", "partial")
    assert set(want) == {f.rule for f in got.values()}
    assert "single_arm:warning" in found(tmp_path / "b", arms=("mine",))

    def silent(repeat, requests, *_):
        requests["completion_tokens"] = [None] * len(requests["completion_tokens"])

    assert "lengths_unreported:warning" in found(tmp_path / "c", edit=only_pdd(silent))

    def half_counted(repeat, requests, *_):
        requests["completion_tokens"] = [n // 2 for n in requests["completion_tokens"]]

    natural = found(tmp_path / "d", edit=only_pdd(half_counted), manifest=lambda m: m.update(output="natural"))
    assert "usage_short:warning" in natural and "bundled:warning" not in natural


def test_natural_lengths_are_free(tmp_path):
    """Only pinned lengths can be wrong."""
    natural = found(tmp_path, edit=only_pdd(short), manifest=lambda m: m.update(output="natural"))
    assert "lengths:invalid" not in natural


def test_unknown_rule_is_an_input_error():
    """A misspelt --allow must not silently allow nothing."""
    with pytest.raises(InputError, match="did you mean 'send_lag'"):
        trust.check_names(["sendlag"])
    trust.check_names(list(trust.RULES))


def test_verdict_and_exit_code(tmp_path):
    """Invalid ends in 98 with the rule's name, a dead arm in 1, and the experiment's own `allow` counts."""

    def kill(repeat, requests, *_):
        for i in range(len(requests["outcome"])):
            fail(requests, i)

    def verdict(name, **recipe):
        summary = build(Dataset(load(make_run(tmp_path / name, Recipe(tokens=12, sessions=30, turns=2, **recipe)))))
        return summary.verdict, summary.exit_code

    assert verdict("a", edit=only_pdd(warm_cache)) == ("invalid: hits", 98)
    assert verdict("b", edit=only_pdd(warm_cache), manifest=lambda m: m.update(allow=["hits"]))[1] == 0
    assert verdict("c", edit=only_pdd(kill)) == ("failed: no request succeeded in pdd", 1)


@given(st.lists(st.integers(0, 9) | st.just(math.inf), max_size=40))
def test_trend_of_many_sessions_is_counted_as_pair_by_pair(values):
    """Without it the rule `backlog` would need gigabytes at a hundred thousand sessions, or count something else."""
    pairs = [(b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :]]
    assert trust_timing._concordance(np.array(values, dtype=float)) == sum(pairs)


def test_a_run_killed_between_two_arms_is_not_whole(tmp_path):
    """The arms that never began would be columns of nothing under the word valid."""
    run = load(make_run(tmp_path))
    assert "partial" not in {finding.rule for finding in trust.findings(Dataset(run))}
    run.manifest["order"] = [*(run.manifest.get("order") or []), ["late", 1]]
    said = [finding.message for finding in trust.findings(Dataset(run)) if finding.rule == "partial"]
    assert said == ["the run was ended before late.1 began"]
