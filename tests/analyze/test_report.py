"""Summary, table, plot, METRICS.md and the commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from pddbench.analyze import registry, trust, trust_warn
from pddbench.analyze.summary import Summary, json_schema, summarise
from pddbench.cli import cli
from pddbench.errors import InputError
from pddbench.report import plot, units
from pddbench.report.table import render
from pddbench.runfolder.load import load

from .synth import Recipe, fail, make_run

ROOT = Path(__file__).parents[2]


def spoil(arm, repeat, requests, *_):
    """Some failures with a hostile message, in one arm."""
    if arm == "naive":
        for i in range(0, 480, 20):
            fail(requests, i, "http_error", "\x1b[31m[bold]::error::$x^{2}$ <script>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    checks = {"pdd.ttft.p90 < 2 s": "fail", "naive.ttft.p50 < 1 ms": "warn"}
    recipe = Recipe(edit=spoil, tokens=24, manifest=lambda m: m.update(check=checks, name="made [bold]$up$"))
    return make_run(tmp_path_factory.mktemp("run"), recipe)


@pytest.fixture(scope="module")
def summary(folder):
    return summarise(load(folder))


def test_every_statistic_is_in_the_summary(summary):
    """`check` and notebooks take figures by name from summary.json."""
    for arm in summary["arms"].values():
        assert set(arm["figures"]) == set(registry.keys())
    assert summary["arms"]["naive"]["ok_only"] and summary["arms"]["pdd"]["ok_only"] is None
    naive = summary["arms"]["naive"]
    assert naive["figures"]["ttft.p99"]["point"] == "inf" and naive["ok_only"]["ttft.p99"]["point"] < 3
    assert naive["outcomes"] == {"ok": 912, "http_error": 48}
    assert summary["paired"]["pdd"]["outcomes"]["ok/ok"] == 960


def test_share_and_goodput_count_failures(summary):
    """Attainment and goodput from all planned requests: leaving failures out flatters an arm."""
    figures = summary["arms"]["naive"]["figures"]
    good = figures["slo_attainment.share"]["point"] * 960
    assert figures["ok.share"]["point"] == pytest.approx(912 / 960)
    assert good == pytest.approx(round(good)) and good <= 912
    assert figures["goodput.rate"]["point"] * 960 / good == pytest.approx(
        figures["request_rate.rate"]["point"] * 960 / 912
    )


def test_money(summary, tmp_path):
    """All roles and the line count; cost per token is the hourly cost over what came out; no roles: no price."""
    figures = summary["arms"]["pdd"]["figures"]
    assert figures["cost_per_hour.value"]["point"] == pytest.approx(4 * 2.0 + 2.0 + 4 * 2.4 + 0.7)
    assert summary["arms"]["baseline"]["cost_per_hour"] == 16.0
    rate = figures["output_rate.rate"]["point"]
    assert figures["cost_per_mtok_output.value"]["point"] == pytest.approx(20.3 / 3600 / rate * 1e6)
    assert figures["goodput_per_cost.value"]["point"] == pytest.approx(figures["goodput.rate"]["point"] * 3600 / 20.3)

    def unpriced(manifest):
        manifest["arms"]["mine"]["roles"] = {}

    run = load(make_run(tmp_path, Recipe(arms=("mine",), sessions=30, tokens=4, slo={}, manifest=unpriced)))
    unknown = summarise(run)
    assert unknown["arms"]["mine"]["figures"]["cost_per_mtok.value"]["withheld"] == "no price"
    text = shown(unknown, 80)
    assert text.count("no price") == 1 and "no SLO given" in text


def test_buckets_and_lowest_bucket(summary):
    """The lowest hit bucket shows the KV transfer: the second token comes later by just its time."""
    low = summary["paired"]["naive"]["lowest_bucket"]
    assert low["bucket"] == "[0,90)"
    late = low["by_request"]["second_sched.p50"]["point"]
    assert late == pytest.approx(low["kv_wan_s"]["point"], rel=0.01)
    buckets = summary["arms"]["pdd"]["buckets"]
    assert sum(bucket["requests"] for bucket in buckets) == 960 and len(buckets) == 7


def conforms(value, schema, root):
    """Whether a value meets a JSON Schema (the keywords that msgspec writes)."""
    if "$ref" in schema:
        return conforms(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return any(conforms(value, option, root) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kind = schema.get("type")
    if kind in ("number", "integer"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    if kind and not isinstance(value, kinds[kind]):
        return False
    if kind == "array":
        return all(conforms(item, schema.get("items", {}), root) for item in value)
    if kind == "object":
        known = schema.get("properties", {})
        other = schema.get("additionalProperties", {})
        return set(schema.get("required", [])) <= set(value) and all(
            conforms(item, known.get(name, other if isinstance(other, dict) else {}), root)
            for name, item in value.items()
        )
    return True


def test_published_schema(summary):
    """summary.schema.json is what we promise: it must be the types' own, accept a real summary and refuse others."""
    published = json.loads((ROOT / "pddbench/report/summary.schema.json").read_text())
    assert published == json_schema()
    real = json.loads(json.dumps(summary, allow_nan=False))
    assert conforms(real, published, published)
    assert msgspec.convert(real, Summary).verdict == summary["verdict"]
    real["arms"]["pdd"]["figures"]["ttft.p50"]["point"] = "many"
    assert not conforms(real, published, published)


def shown(summary, width):
    out = StringIO()
    render(summary, Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_table_fits_and_says_it_all(summary, width):
    """The table must not be cut at 80 columns, nor leave out what was asked for, nor pass on a server's markup."""
    text = shown(summary, width)
    assert max(len(line) for line in text.splitlines()) <= width
    flat = " ".join(text.split())
    for words in ("WAN: model, not packets (national)", "send lag", "TTFT P50", "TTFT from due", "2nd-token gap P90",
                  "ITL P99", "largest gap", "E2E", "session done", "planned per request", "possible by token",
                  "served by token", "eager tokens", "RLD, requests", "seam stall", "hand-off", "KV over WAN",
                  "KV transfer", "SLO attainment", "goodput per cost at", "cost per million", "successes only",
                  "naive − baseline, paired", "planned hit [0,90)%", "n_eff", "http_error", "inf", "KV scale 1/100",
                  "ok/fail 48"):  # fmt: skip
        assert words in flat, words
    assert flat.endswith("verdict: valid, with 1 warning")
    assert "\x1b" not in text and "<script>" not in text and not re.search(r"^\s*::", text, re.MULTILINE)
    assert "made [bold]$up$: baseline, naive, pdd" in flat and "BCR" not in text


def test_many_arms_stack(tmp_path):
    """Five arms do not fit beside each other at 80 columns: they come in blocks."""
    arms = ("baseline", "naive", "pdd", "mine", "another-one")
    text = shown(summarise(load(make_run(tmp_path, Recipe(arms=arms, sessions=20, tokens=8, repeats=1)))), 80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("what a user feels") == 2 and "another-one" in text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (1.2345, "1.23"), (12.345, "12.3"), (123.4, "123"), (99.96, "100"), (9.996, "10.0"),
     (0.12345, "0.123"),
     (0.012345, "0.0123"), (1234567.0, "1,234,567"), (float("inf"), "inf"), (float("nan"), "–"), (-0.5, "-0.500"),
     (1e-12, "0")],
)  # fmt: skip
def test_plain_numbers(number, text):
    """Three significant digits, no exponents, infinities and missing bounds in words."""
    assert units.plain(number) == text


def test_cells():
    """A row has one unit; a missing bound, a refusal and "does not apply" look different."""
    figure = {"point": 0.25, "low": 0.2, "high": None, "rows": 9, "withheld": None}
    assert units.pick([figure], "s") == (1e-3, "ms")
    assert units.cell(figure, 1e-3) == "250 [200, –]"
    assert units.cell(figure | {"withheld": "n_eff 31 < 36"}, 1e-3) == "withheld (n_eff 31 < 36)"
    assert units.cell(figure | {"withheld": "no rows"}, 1e-3) == "–"
    assert units.cell(figure | {"point": "inf", "high": "inf"}, 1e-3) == "inf [200, inf]"
    assert units.cell(figure, 1e-3, signed=True) == "+250 [+200, –]"


def test_plot_files_and_hostile_names(folder, tmp_path):
    """PNG and SVG must come out, and a `$` in a name must not be read as mathematics (or break the run's end)."""
    png, svg = plot.plot_ttft(load(folder), tmp_path)
    assert png.read_bytes()[:4] == b"\x89PNG" and len(png.read_bytes()) > 10_000
    assert b"made [bold]$up$" not in png.read_bytes() and "<svg" in svg.read_text()
    assert plot.escape("a$x^{2}$\\frac") == "a\\$x^{2}\\$\\\\frac"
    assert plot.spread_axis(0.99) == pytest.approx(2.0)


def test_metrics_md_agrees_with_the_code():
    """METRICS.md is the contract: names, units and statistics there must be those that `check` takes."""
    text = (ROOT / "METRICS.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|[^|]*\|[^|]*\|$", text, re.MULTILINE)
    told = {name: (unit.strip(), tuple(stats.split())) for name, unit, stats in rows}
    assert told == {name: (metric.unit, metric.stats) for name, metric in registry.METRICS.items()}
    rules = set(re.findall(r"^\| `([a-z0-9_]+)` \| [^|]+ \|", text.split("## Trust")[1], re.MULTILINE))
    source = Path(trust_warn.__file__).read_text()
    warnings = set(re.findall(r'_warn\(\s*"([a-z0-9_]+)"', source))
    assert rules == set(trust.RULES) | warnings


def run_cli(*args):
    """Run a command in this process."""
    return CliRunner().invoke(cli, [str(arg) for arg in args], standalone_mode=False, env={"COLUMNS": "120"})


def test_report_command(folder):
    """`report` prints the table and checks again, rewrites summary.json and the plots, and returns the code."""
    for name in ("summary.json", "ttft.png", "ttft.svg"):
        (folder / name).unlink(missing_ok=True)
    done = run_cli("report", folder)
    assert done.return_value == 0 and "verdict: valid" in done.output
    assert "pass: pdd.ttft.p90 < 2 s (" in done.output and "breach: naive.ttft.p50 < 1 ms (" in done.output
    assert json.loads((folder / "summary.json").read_text())["exit_code"] == 0
    assert (folder / "ttft.png").exists() and (folder / "ttft.svg").exists()
    printed = json.loads(run_cli("report", folder, "--json").stdout)
    assert [check["status"] for check in printed["checks"]] == ["pass", "breach"]


def test_check_command(folder):
    """Exit codes of thresholds, and a suggestion for a wrong name, through the command itself."""
    assert run_cli("check", folder).return_value == 0
    assert run_cli("check", folder, "--that", "pdd.ttft.p50 < 1 ms").return_value == 99
    assert run_cli("check", folder, "--that", "pdd.ttft.p99.9 < 1 s").return_value == 98
    plain = run_cli("check", folder, "--json", "--that", "pdd.ttft.p50 < 1 ms")
    assert json.loads(plain.stdout)["exit_code"] == 99
    wrong = run_cli("check", folder, "--that", "pdd.ttft_shed.p50 < 1 ms")
    assert isinstance(wrong.exception, InputError) and "did you mean 'ttft_sched'" in str(wrong.exception)


def test_compare_command(folder, tmp_path):
    """Two runs pair by request where plans agree; two arms of one run too; what cannot be compared is said."""

    def other(arm, repeat, requests, *_):
        requests["plan_sha256"][0] = "other"

    second = make_run(tmp_path / "b", Recipe(arms=("naive", "mine"), tokens=24, edit=other))
    done = run_cli("compare", folder, second)
    flat = " ".join(done.output.split())
    assert done.return_value == 0
    assert "naive (B) − naive (A)" in flat and "fail/ok 46" in flat
    assert "2 requests of the same id have other plans" in flat and "arm pdd: only in one run" in flat
    two = run_cli("compare", folder, "--arms", "naive,pdd", "--json")
    assert json.loads(two.stdout)["pairs"]["pdd"]["against"] == "naive"
    for args in ((folder,), (folder, "--arms", "naive"), (folder, "--arms", "naive,nobody"), (folder, second, folder)):
        assert isinstance(run_cli("compare", *args).exception, InputError)


def test_a_request_that_is_there_twice_is_refused(folder, tmp_path):
    """A copy of a rows' file left beside it ended every command that reads the run in a traceback of pandas."""
    twice = tmp_path / "twice"
    shutil.copytree(folder, twice)
    rows = next((twice / "requests").glob("pdd*.parquet"))
    shutil.copy(rows, rows.with_name("copy.parquet"))
    for args in (("report", twice), ("compare", folder, twice), ("check", twice, "--that", "pdd.ttft.p50 < 9 s")):
        error = run_cli(*args).exception
        assert isinstance(error, InputError)
        assert "twice/requests: request 's" in str(error) and "of pdd.1 is there twice" in str(error)


def test_one_session_says_why(tmp_path):
    """A replay of a single conversation has no interval by session: figures say so, and the rows are shown as rows."""
    run = load(make_run(tmp_path, Recipe(arms=("mine",), sessions=1, turns=30, repeats=1)))
    summary = summarise(run)
    text = " ".join(shown(summary, 120).split())
    assert "withheld (one session)" in text and "these rows only" in text
    seen = summary["arms"]["mine"]["observed"]["ttft"]
    ttft = (run.requests["first_token_ns"] - run.requests["sent_ns"]) / 1e9
    assert (seen["low"], seen["high"]) == pytest.approx((ttft.min(), ttft.max()))
    assert seen["point"] == pytest.approx(sorted(ttft)[14]) and seen["rows"] == 30


def test_large_run_is_quick(tmp_path):
    """3,600 requests an arm with 100 tokens each must be answered in seconds, or nobody looks at a real run twice."""
    folder = make_run(tmp_path, Recipe(sessions=600, turns=6, tokens=100, repeats=1))
    code = (
        "import sys, time; from pddbench.analyze.summary import summarise; from pddbench.runfolder.load import load;"
        "import pandas, pyarrow.parquet; t = time.process_time(); s = summarise(load(sys.argv[1]));"
        "print(time.process_time() - t, s['arms']['pdd']['figures']['itl.p99.9']['rows'])"
    )
    env = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, env=env
    )
    cpu_s, gaps = done.stdout.split()
    assert int(gaps) == 600 * 6 * 99
    assert float(cpu_s) < 20  # about 3.5 s of CPU on the machine this was written on; CPU time, not wall time


def test_reading_is_lazy(folder):
    """`load` must not read tables that nobody asks for: events of a long run are gigabytes."""
    start = time.process_time()
    run = load(folder)
    assert not {"requests", "events", "server", "health"} & set(vars(run))
    assert time.process_time() - start < 5


def test_interrupted_run_with_an_arm_that_never_ran(tmp_path):
    """After a signal whole arms, tables and times are missing: the answer must still come, and say so."""

    def unsent(arm, repeat, requests, *_):
        for i in range(200, len(requests["outcome"])):
            fail(requests, i, "not_sent", "interrupted")
            for name in ("due_ns", "sent_ns", "end_ns", "ready_ns", "throttle_wait_ns"):
                requests[name][i] = None

    recipe = Recipe(repeats=1, tokens=12, edit=unsent, manifest=lambda m: m.update(partial=True, signal="SIGINT"))
    folder = make_run(tmp_path, recipe)
    for name in ("requests", "events", "server", "health"):
        (folder / name / "pdd.0.parquet").unlink()
    (folder / "events" / "naive.0.parquet").unlink()
    done = run_cli("report", folder)
    assert done.exception is None and done.return_value == 0
    assert "stopped early" in done.output and "never begun: pdd" in done.output and "valid so far" in done.output
    assert run_cli("compare", folder, "--arms", "baseline,naive").return_value == 0


def test_bare_rows_are_enough(tmp_path):
    """An endpoint that tells nothing (no usage, no extension) and a run without events or health still get a table."""

    untold = ("completion_tokens", "prompt_tokens", "cached_tokens", "cached_tokens_possible", "cached_tokens_ceiling",
              "cached_tokens_planned", "pipeline", "tokens_p", "tokens_rld", "tokens_md")  # fmt: skip

    def bare(arm, repeat, requests, events, *_):
        for name in untold:
            requests[name] = [None] * len(requests["outcome"])

    folder = make_run(tmp_path, Recipe(arms=("mine", "other"), tokens=12, edit=bare))
    for name in ("events", "server", "health"):
        for file in (folder / name).iterdir():
            file.unlink()
    done = run_cli("report", folder)
    assert done.exception is None and done.return_value == 0 and "lengths_unreported" in done.output
    figures = summarise(load(folder))["arms"]["mine"]["figures"]
    for key in ("output_rate.rate", "cost_per_mtok_output.value", "cost_per_mtok.value"):
        assert figures[key]["withheld"] == "no usage in 100% of ok replies", key
    assert figures["request_rate.rate"]["point"] > 0


def test_transfers_that_outlive_their_replies(tmp_path):
    """The slowest transfers are the ones whose replies end first: without them P90 would look far too good."""

    def outlived(arm, repeat, requests, *_):
        moved = [i for i, n in enumerate(requests["kv_wan_bytes"]) if n]
        for i in moved[::10]:
            requests["kv_wan_ns"][i] = None

    run = load(make_run(tmp_path, Recipe(arms=("baseline", "naive"), tokens=12, edit=outlived)))
    figures = summarise(run)["arms"]["naive"]["figures"]
    assert "outlived their replies" in figures["kv_wan_s.p90"]["withheld"]
    assert figures["kv_wan_bytes.p90"]["point"] > 0


def test_read_only_folder_still_answers(folder, monkeypatch):
    """Somebody else's results on a read-only share: the table comes, then one sentence about what was not written."""

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    done = run_cli("report", folder)
    assert "verdict: valid" in done.output
    assert isinstance(done.exception, InputError) and "Read-only file system" in str(done.exception)


def test_nothing_was_sent_at_all(tmp_path):
    """A run stopped in its first second has no time at all to draw: the answer must still come."""

    def unsent(arm, repeat, requests, events, *_):
        for i in range(len(requests["outcome"])):
            fail(requests, i, "not_sent", "interrupted")
            for name in ("due_ns", "sent_ns", "end_ns", "ready_ns", "throttle_wait_ns"):
                requests[name][i] = None

    recipe = Recipe(repeats=1, tokens=12, slo={}, edit=unsent, manifest=lambda m: m.update(partial=True, signal=2))
    done = run_cli("report", make_run(tmp_path, recipe))
    assert done.exception is None and done.return_value == 0
    assert "stopped early" in done.output
