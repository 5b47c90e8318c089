"""`doctor` and `init`: the first two minutes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from pddbench.cli import cli
from pddbench.doctor import probes
from pddbench.doctor.advice import works
from pddbench.errors import InputError
from pddbench.replay.native import compiled
from pddbench.trace.read import read_trace
from pddbench.wan import probe as wan_probe
from pddbench.workload.load import load_experiment

ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "traces/agentic-small.trace.jsonl.zst")


def pddbench(*words):
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


def test_doctor_looks_at_everything():
    """A probe that is not run tells nobody why a run ends in 98; each trouble comes with advice."""
    done = pddbench("doctor", "--json")
    found = json.loads(done.stdout)
    assert len(found["probes"]) == len(probes.PROBES)
    assert all(one["advice"] for one in found["probes"] if one["status"] != "ok")
    assert done.return_value == 0 and found["works"]["run and up with emulated arms (--wan model)"]


def test_doctor_says_it_in_words():
    """People read the text form: names, what follows, what to do."""
    text = pddbench("doctor").stdout
    for word in ("kernel", "netem", "TUN", "open files", "uvloop", "will work"):
        assert word in text


@pytest.mark.parametrize(
    ("there", "asked", "status", "said"),
    [
        (True, "", "ok", "there"),
        (False, "", "warn", "not compiled"),
        (True, "python", "warn", "not used"),
        (True, "x", "missing", "PDDBENCH_READER=x: give native or python"),
        (False, "native", "missing", "there is no native reader here"),
    ],
)
def test_the_native_reader_is_told(monkeypatch, tmp_path, there, asked, status, said):
    """Without it a host without a compiler would measure with the slower reader, and nobody would know why."""
    if not there:
        monkeypatch.setattr(compiled, "LIBRARY", tmp_path / "none.so")
    compiled.load.cache_clear()
    monkeypatch.setenv(compiled.VARIABLE, asked)
    try:
        probe = probes.reader()
    finally:
        compiled.load.cache_clear()
    assert probe.status == status and said in probe.found
    assert (probe.advice is None) == (status == "ok")


def test_no_loopback_no_emulated_arms(monkeypatch):
    """Where nothing can be bound, doctor must not promise emulated arms."""

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(probes.socket, "create_server", refuse)
    done = pddbench("doctor", "--json")
    assert done.return_value == 1
    assert not json.loads(done.stdout)["works"]["run and up with emulated arms (--wan model)"]


def test_few_files_and_late_timers_are_told(monkeypatch):
    """The two usual reasons for a late client: too few sockets, timers that slip."""
    monkeypatch.setattr(probes.resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(probes.time, "perf_counter", iter(x * 0.01 for x in range(1000)).__next__)
    monkeypatch.setattr(probes.time, "sleep", lambda _: None)
    files, timers = probes.files(), probes.timers()
    assert files.status == "warn" and files.advice == "ulimit -n 1024"
    assert timers.status == "warn" and "9000 µs late" in timers.found


def test_only_what_the_machine_can_do_is_promised():
    """A user would plan a run over netem on a kernel that has none."""
    looked = (probes.cores, probes.timers, probes.files, probes.loopback, probes.engine, probes.results)
    rest = [probe() for probe in looked]
    for there in (True, False):
        found = [probes.Probe(name=name, status="ok" if there else "missing", found="",
                              means=probes._wan(name.lower(), there)) for name in ("netem", "TUN")]  # fmt: skip
        answer = works([*found, *rest])
        for name in ("netem", "TUN"):
            assert answer[f"runs of emulated arms over {name}"] == there


@pytest.mark.parametrize("there", [True, False])
def test_packets_are_tried_not_guessed(monkeypatch, there):
    """Root was asked for where a user namespace does, and promised where the kernel refuses."""
    seen = []

    def tried(backend):
        seen.append(backend)
        return wan_probe.Probe(backend, there, "round trips of 10 ms; unprivileged user namespace")

    monkeypatch.setattr(wan_probe, "probe", tried)
    for found in (probes.netem(), probes.tun()):
        assert found.found == "round trips of 10 ms; unprivileged user namespace"
        assert (found.status == "ok") == there == (found.advice is None)
        assert found.means.startswith("--wan") == there
    assert seen == ["netem", "tun"]


def test_init_makes_three_emulated_arms(tmp_path):
    """Without flags and terminal: a file that `run` takes as it is."""
    out = tmp_path / "e.toml"
    assert pddbench("init", "--out", out, "--trace", TRACE).return_value == 0
    assert [arm.emulated for arm in load_experiment(out).arm] == ["baseline", "naive", "pdd"]
    assert out.read_text().count("#") > 10


def test_init_makes_real_servers(tmp_path):
    """Arms of llama.cpp were not to be had from `init`; their context must hold the trace, or `run` refuses."""
    out = tmp_path / "e.toml"
    assert pddbench("init", "--out", out, "--trace", TRACE, "--engine", "llamacpp").return_value == 0
    found = load_experiment(out)
    assert [(arm.engine, arm.deployment) for arm in found.arm] == [
        ("llamacpp", n) for n in ("baseline", "naive", "pdd")
    ]
    rows = read_trace(Path(TRACE), None).rows[: found.workload.limit_requests]
    assert found.llamacpp.context_tokens > max(row.input_tokens + row.output_tokens for row in rows)
    done = pddbench("init", "--out", tmp_path / "f.toml", "--trace", TRACE, "--engine", "llamacpp", "--endpoint",
                    "a=http://127.0.0.1:1", "--model", "m")  # fmt: skip
    assert "leave --endpoint out" in str(done.exception)


def test_doctor_knows_real_servers(monkeypatch):
    """Without the wheel an arm with engine = "llamacpp" ends in 2: doctor must say so before."""
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda _: None)
    found = probes.engine()
    assert found.status == "missing" and "pddbench[live]" in found.advice
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda _: object())
    assert probes.engine().status == "ok"


def test_init_for_own_endpoints(tmp_path):
    """Two live endpoints, with quotes in a name of a model."""
    out = tmp_path / "e.toml"
    done = pddbench("init", "--out", out, "--trace", TRACE, "--endpoint", "a=http://127.0.0.1:1/v1", "--endpoint",
                    "b=http://127.0.0.1:2/v1", "--model", 'm"x\\', "--target-profile", "vllm")  # fmt: skip
    assert done.return_value == 0, done.exception
    experiment = load_experiment(out)
    assert [arm.base_url for arm in experiment.arm] == ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]
    assert experiment.arm[0].model == 'm"x\\' and experiment.workload.output == "exact"


def test_what_init_comments_out_is_right(tmp_path):
    """A user takes the # away from a suggestion: it must be a key that exists."""
    out = tmp_path / "e.toml"
    pddbench("init", "--out", out, "--trace", TRACE, "--endpoint", "a=http://127.0.0.1:1/v1", "--model", "m")
    keys = ("# api_key_env", "# roles", "# [cost]", "# chips", "# limit_requests")
    lines = [line[2:] if line.startswith(keys) else line for line in out.read_text().splitlines()]
    out.write_text("\n".join(lines))
    assert set(tomllib.loads(out.read_text())["cost"]) == {"chips"}
    assert load_experiment(out).arm[0].api_key_env == "MY_KEY"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--endpoint", "nonsense", "--model", "m"], "NAME=URL"),
        (["--endpoint", "a=http://127.0.0.1:1"], "--model"),
        (["--endpoint", "a=http://127.0.0.1:1", "--model", "m", "--target-profile", "vlmm"], "vllm"),
        (["--session-rate", "-1"], "session_rate"),
        (["--wan", "nationl"], "national"),
        (["--name", "A b"], "name"),
        (["--trace", "/nowhere.jsonl"], "no such file"),
    ],
)
def test_init_refuses_what_run_would(tmp_path, flags, said):
    """A file that `run` then refuses wastes the user's first minutes; nothing is left behind."""
    flags = flags if "--trace" in flags else [*flags, "--trace", TRACE]
    done = pddbench("init", "--out", tmp_path / "e.toml", *flags)
    assert isinstance(done.exception, InputError) and said in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_init_keeps_what_is_there(tmp_path):
    """An experiment that somebody wrote must not be lost to a second `init`."""
    out = tmp_path / "e.toml"
    out.write_text("mine")
    done = pddbench("init", "--out", out, "--trace", TRACE)
    assert "exists" in str(done.exception) and out.read_text() == "mine"
    assert pddbench("init", "--out", out, "--trace", TRACE, "--force").return_value == 0
