"""Virtual time: the same code as live, repeatable to the bit, in the same run folder."""

import json

import pandas as pd
import pytest
from click.testing import CliRunner
from run_kit import pddbench, small_rows, typed, write_trace

import pddbench as package
from pddbench.cli import cli

EXPERIMENT = """
name = "virtual"
[workload]
trace = "t.trace.jsonl"
idle_cap_s = 1.0
warmups = 1
[[arm]]
name = "baseline"
emulated = "baseline"
[[arm]]
name = "naive"
emulated = "naive"
[[arm]]
name = "pdd"
emulated = "pdd"
"""


def simulate(path, out, *flags, text=EXPERIMENT):
    write_trace(path / "t.trace.jsonl", small_rows(12, tokens=3000, gap_s=0.5, start_gap_s=1.0, output=60))
    (path / "e.toml").write_text(text)
    done = typed("simulate", path / "e.toml", "--out", path / out, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The same simulation run twice."""
    path = tmp_path_factory.mktemp("simulate")
    return path, simulate(path, "one"), simulate(path, "two")


def test_same_seed_same_bits(twice):
    """Without it, a simulated difference could be noise of the simulator."""
    path, _, _ = twice
    for table in ("requests", "events"):
        one, two = (pd.read_parquet(path / out / table) for out in ("one", "two"))
        pd.testing.assert_frame_equal(one, two)


def test_it_says_that_it_is_simulated(twice):
    """Without it, virtual figures could be taken for measured ones."""
    path, done, _ = twice
    assert "simulated in virtual time" in " ".join(done.stdout.split("\n\n")[0].split())
    assert json.loads((path / "one" / "manifest.json").read_text())["simulated"] is True


def test_physics_and_tokens(twice):
    """Without it, the virtual deployment could lose requests, or its WAN cost nothing."""
    rows = package.load(str(twice[0] / "one")).requests
    rows = rows[rows["phase"] == "measure"]
    assert (rows["outcome"] == "ok").all() and len(rows) == 3 * 36
    ttft_s = (rows["first_token_ns"] - rows["sent_ns"]).astype(float) / 1e9
    first = ttft_s[rows["turn"] == 0].groupby(rows["arm"]).median()
    naive = rows[(rows["arm"] == "naive") & (rows["turn"] == 0)]
    assert first["naive"] - first["baseline"] == pytest.approx(naive["kv_wan_ns"].astype(float).median() / 1e9, rel=0.1)
    assert (rows["sent_ns"] == rows["due_ns"]).all()
    pdd = rows[(rows["arm"] == "pdd") & rows["handoff_token"].notna()]
    assert len(pdd) and (pdd["handoff_token"] == pdd["tokens_rld"]).all()


def test_real_endpoints_are_refused(tmp_path):
    """Without it, a user could believe that a real endpoint was simulated."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(2))
    (tmp_path / "e.toml").write_text(
        EXPERIMENT + '[[arm]]\nname = "mine"\nbase_url = "http://127.0.0.1:1"\nmodel = "m"\n'
    )
    done = pddbench("simulate", tmp_path / "e.toml", "--out", tmp_path / "out")
    assert done.returncode == 2 and "only emulated arms" in done.stderr


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("[emulator]\nspeed = inf", "speed = inf is out of range"),
        ("[emulator]\nspeed = nan", "speed = nan: must be above 0"),
        ("[workload]\nmax_concurrency = 4", "max_concurrency brakes a live client and is not simulated"),
        ("[workload]\nmax_start_rate = 4.0", "max_start_rate brakes a live client and is not simulated"),
    ],
)
def test_what_is_not_simulated_is_refused(tmp_path, what, sentence):
    """Without it, a figure that has no meaning, or a brake that is not there, would be taken in silence."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(2))
    table, line = what.split("\n")
    text = EXPERIMENT.replace(table, what, 1) if table in EXPERIMENT else f"{EXPERIMENT}\n{what}\n"
    (tmp_path / "e.toml").write_text(text)
    done = typed("simulate", tmp_path / "e.toml", "--out", tmp_path / "out")
    assert done.returncode == 2 and sentence in done.stderr, done.stderr + line


MADE = ["body_sha256", "output_sha256", "max_gap_token"]  # the last: of equal gaps a rounded nanosecond picks one
TIMES = [f"{name}_ns" for name in ("scheduled", "ready", "due", "sent", "first_byte", "first_chunk", "first_token",
         "second_token", "last_token", "end", "user_first_token", "max_gap", "kv_wan")]  # fmt: skip


@pytest.mark.parametrize(
    "arms", ['tokens_per_chunk = 1\nprompt = "token_ids"', 'tokens_per_chunk = 5\nprompt = "text"']
)
def test_counting_tokens_gives_the_rows_of_making_them(tmp_path, arms):
    """Without it, the fast simulation could be another system than the one that serves tokens."""
    chunk, prompt = arms.split("\n")
    text = EXPERIMENT.replace("warmups = 1", f"warmups = 1\n{prompt}") + f"\n[emulator]\n{chunk}\n"
    simulate(tmp_path, "counted", text=text)
    simulate(tmp_path, "made", "--by-token", text=text)
    for table in ("requests", "events"):
        counted, made = (pd.read_parquet(tmp_path / out / table) for out in ("counted", "made"))
        if table == "requests":
            assert (made.groupby("request_id")["output_sha256"].nunique() == 1).all()
            assert counted["output_sha256"].isna().all()
            for name in TIMES:
                one, two = counted[name].astype(float), made[name].astype(float)
                pd.testing.assert_series_equal(one, two, rtol=0, atol=3)
            counted, made = (frame.drop(columns=[*MADE, *TIMES]) for frame in (counted, made))
            pd.testing.assert_frame_equal(counted, made, check_dtype=False)
        else:
            for name in ("chunk_tokens", "stage"):
                assert [list(row) for row in counted[name]] == [list(row) for row in made[name]]
            for one, two in zip(counted["gaps_us"], made["gaps_us"], strict=True):
                assert len(one) == len(two) and (abs(one - two) <= 1).all()


def test_gaps_beyond_memory_are_left_out_or_refused(tmp_path, monkeypatch):
    """Without it, an hour of a whole deployment would fill the memory after the simulation itself was done."""
    monkeypatch.setattr("pddbench.runner.conduct.MOST_GAPS", 1000)
    write_trace(tmp_path / "t.trace.jsonl", small_rows(4, output=60))
    (tmp_path / "e.toml").write_text(EXPERIMENT)

    def simulated(*flags):
        words = ["simulate", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), "--quiet", *flags]
        return CliRunner().invoke(cli, words, standalone_mode=False)

    assert "leave them out with --no-gaps" in str(simulated().exception)
    assert "exclude each other" in str(simulated("--no-gaps", "--by-token").exception)
    done = simulated("--no-gaps")
    assert done.return_value == 0, done.exception
    run = package.load(str(tmp_path / "out"))
    assert len(run.events) == 0 and run.requests["max_gap_ns"].notna().all()
