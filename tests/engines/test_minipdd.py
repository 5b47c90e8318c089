"""The real mini-PDD: llama.cpp servers as P, RLD and MD on the two sides of a link of packets."""

import json
import os
import random
import signal
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from pddbench.deploy.minipdd.contexts import Contexts
from pddbench.deploy.minipdd.launch import MiniDeployment
from pddbench.deploy.minipdd.spec import MiniSpec
from pddbench.errors import WorldError
from pddbench.wan.link import Link
from tests.engines.engine_kit import require, run_mini, stream
from tests.run.run_kit import pddbench, small_rows, start, wait_for, write_trace

pytestmark = pytest.mark.slow

HAND_OFFS = 26  # of each mode
ONE_WAY_MS = 5.0
LONG_TOKENS = 700  # long enough that the KV arrives before RLD is through
EXPERIMENT = """
name = "mini"
[workload]
trace = "small.trace.jsonl"
max_concurrency = 1
[emulator]
threshold_s = 0
[wan]
one_way_ms = {one_way_ms}
rate_mbit = 200
[[arm]]
name = "baseline"
engine = "llamacpp"
deployment = "baseline"
[[arm]]
name = "naive"
engine = "llamacpp"
deployment = "naive"
[[arm]]
name = "pdd"
engine = "llamacpp"
deployment = "pdd"
"""


@pytest.fixture(autouse=True)
def _engine():
    require("xllamacpp")


def prompts(tokens):
    """Endless random prompts that share their first half."""
    draw = random.Random(7)
    shared = [draw.randrange(259, 875) for _ in range(tokens // 2)]
    while True:
        yield shared + [draw.randrange(259, 875) for _ in range(tokens - len(shared))]


@pytest.mark.parametrize("mode", ["one_shot", "catch_up"])
def test_exact(mode):
    """A hand-off that loses, doubles or changes a token looks like a good answer: each one is compared with a single
    process, and MD's own count of what it computed shows that ids alone crossed, not their KV."""  # fmt: skip
    spec = MiniSpec(
        kind="pdd", link=Link(1.0, 200.0, 200.0), wan_backend="tun", threshold_s=0.0, handoff=mode, catch_up_tokens=8,
        slots=2, context_tokens=1024,
    )  # fmt: skip
    handed: list[dict] = []
    with MiniDeployment(spec) as deployment, ThreadPoolExecutor(2) as workers:
        assert not deployment.link_problems
        ask = prompts(80)
        for _ in range(8):  # RLD may be done before the KV is there: until there are enough
            if len(handed) >= HAND_OFFS:
                break
            batch = [next(ask) for _ in range(HAND_OFFS // 2)]
            for text, stages, facts in workers.map(lambda ids: stream(deployment.url, ids, 120), batch):
                assert text and len(stages) == 120
                if facts["handoff"]:
                    assert stages == ["rld"] * facts["eager"] + ["md"] * (120 - facts["eager"])
                    handed.append(facts["handoff"])
        found = {metric: value for _, metric, value in deployment.exactness()}
    assert len(handed) >= HAND_OFFS
    assert found["differing"] == 0 and found["not_kept"] == 0
    assert found[mode] == len(handed) and found[f"{mode}_differing"] == 0
    for handoff in handed:
        assert handoff["mode"] == mode and handoff["rounds"] >= (1 if mode == "one_shot" else 2)
        # a last round without new ids computes the last one again
        assert handoff["token"] <= handoff["recomputed_tokens"] <= handoff["token"] + handoff["rounds"]
        assert handoff["bytes"] <= 4 * handoff["token"] + 32 * handoff["rounds"]


@pytest.fixture(scope="module")
def three_arms(tmp_path_factory):
    """A run of all three arms over a link of packets; one answer a session is long enough to be handed over."""
    require("xllamacpp")
    experiment = EXPERIMENT.format(one_way_ms=ONE_WAY_MS)
    return run_mini(tmp_path_factory.mktemp("mini"), experiment, 3, LONG_TOKENS)[0]


def by_request(run, arm, column):
    """A column of an arm, by request."""
    rows = run.requests
    return rows[rows["arm"] == arm].set_index("request_id")[column]


def test_same_tokens_in_all_arms(three_arms):
    """Arms that say other things did other work: nothing else about them can be compared."""
    assert (three_arms.requests["outcome"] == "ok").all()
    texts = [by_request(three_arms, arm, "output_sha256") for arm in ("baseline", "naive", "pdd")]
    assert texts[0].equals(texts[1]) and texts[0].equals(texts[2])
    for arm in ("baseline", "naive", "pdd"):
        server = three_arms.server
        checked = server[(server["arm"] == arm) & (server["process"] == "exactness")].set_index("metric")["value"]
        assert checked["replies"] == 7 and checked["differing"] == 0  # the preflight too
        assert three_arms.manifest["arms"][arm]["started"]["why_inexact"] == ""


def test_link_is_verified_before_and_after(three_arms):
    """A link that was not as asked makes plausible figures of another deployment."""
    assert three_arms.manifest["wan"]["backend"] == "tun"
    links = {run["arm"]: run.get("link") for run in three_arms.manifest["runs"]}
    assert links["baseline"] is None
    for arm in ("naive", "pdd"):
        assert links[arm]["ok"] and links[arm]["before"] and links[arm]["after"]


def test_served_hits_are_the_planned_ones(three_arms):
    """P's cache is a real one: what it served must be what the trace's tree says, to the token."""
    rows = three_arms.requests
    # two prompts that part may have the same next token by chance: one more is then really shared, in every arm
    more = rows["cached_tokens"] - rows["cached_tokens_planned"]
    assert more.isin([0, 1, 2]).all() and rows.loc[more > 0, "request_id"].nunique() <= 1
    assert rows["cached_tokens_planned"].sum() > 3 * 1000
    assert (rows["prompt_tokens"] == rows["input_tokens_planned"]).all()


def test_first_token_comes_sooner_with_a_relay(three_arms):
    """What PDD is for: naive's first token waits for the KV to cross the link, RLD's does not."""
    ttft = {
        arm: by_request(three_arms, arm, "first_token_ns") - by_request(three_arms, arm, "sent_ns")
        for arm in ("naive", "pdd")
    }
    crossing_ns = by_request(three_arms, "naive", "kv_wan_ns")
    assert (crossing_ns > 2 * ONE_WAY_MS * 1e6).all()
    assert (ttft["naive"] > crossing_ns).all()
    assert (ttft["naive"] - ttft["pdd"]).median() > 0


def test_seam_is_annotated_where_it_is(three_arms):
    """The token that the extension names is the first of the other producer, and the gap before it holds the way of
    the ids to MD and of the token back."""  # fmt: skip
    rows = three_arms.requests.merge(three_arms.events, on=["arm", "repeat", "request_id"])
    handed = rows[rows["handoff_token"].notna()]
    assert set(handed["arm"]) == {"pdd"}
    for row in handed.itertuples():
        token = int(row.handoff_token)
        assert list(row.stage).index("md") == token and row.tokens_rld == token
        assert row.tokens_md == row.output_tokens_planned - token
        assert token == 0 or row.gaps_us[token - 1] >= 2 * ONE_WAY_MS * 1e3


def test_seam_is_found_blind(three_arms):
    """An endpoint without the extension has seams too: from the gaps alone they must be found at the same token."""
    from pddbench.analyze import seams

    rows = three_arms.requests.merge(three_arms.events, on=["arm", "repeat", "request_id"])
    places = []
    inside = (rows["handoff_token"] > seams.EDGE) & (rows["output_tokens_planned"] == LONG_TOKENS)  # not at an end
    for row in rows[inside].itertuples():
        stream = seams.Stream(np.array(row.gaps_us) / 1e6, np.array(row.chunk_tokens[1:], np.float64))
        found = list(seams.candidates(stream).gap)
        assert int(row.handoff_token) - 1 in found
        places.append(found.index(int(row.handoff_token) - 1))
    assert 0 in places  # a busy machine may stall some of the few longer somewhere else


def test_check_sees_a_wrong_token(models, tmp_path):
    """A check that cannot fail proves nothing: one changed token must be counted, and where it is."""
    import asyncio

    from pddbench.deploy.minipdd.cluster_a import Job
    from pddbench.deploy.minipdd.exactness import Exactness
    from pddbench.deploy.minipdd.llama import Generation, Llama
    from tests.engines.engine_kit import llama_server

    async def compare(url):
        single, exactness = Llama("single", url, 1), Exactness()
        ids = next(prompts(40))
        out = [piece.token async for piece in single.generate(Generation(), ids, 30, 0)]
        wrong = [*out[:17], out[17] + 1, *out[18:]]
        for tokens in (out, wrong, out[:-1]):
            exactness.keep(Job(1, ids, 30, True, print, out=tokens, handoff={"mode": "one_shot", "token": 9}))
        found = await exactness.check(single, 60.0)
        await single.close()
        return found

    with llama_server(models / "plain.gguf") as url:
        found = asyncio.run(compare(url))
    assert (found["replies"], found["differing"], found["one_shot_differing"]) == (3, 2, 2)
    assert found["first_difference_token"] == 17


def test_held_back_ids_are_an_error(models):
    """llama.cpp keeps back bytes that are no character, and their ids: an answer with a hole must not look whole."""
    spec = MiniSpec(kind="baseline", link=Link(1.0, 100.0, 100.0), wan_backend="model", gguf=str(models / "bytes.gguf"))
    with MiniDeployment(spec) as deployment, pytest.raises(AssertionError, match="held back"):
        for ids, _ in zip(prompts(50), range(20), strict=False):
            stream(deployment.url, ids, 40)


def test_a_dead_server_is_named(tmp_path):
    """A deployment with a part missing must end in a sentence that says which, not hang or serve half answers."""
    spec = MiniSpec(kind="naive", link=Link(1.0, 100.0, 100.0), wan_backend="model", slots=1, context_tokens=512)
    with MiniDeployment(spec) as deployment:
        os.kill(deployment.info["pids"]["llama.cpp's server for D"], signal.SIGKILL)
        with pytest.raises(AssertionError, match=r"D: llama\.cpp's server does not answer"):
            stream(deployment.url, next(prompts(50)), 5)
        with pytest.raises(WorldError, match=r"llama\.cpp's server for D ended"):
            for _ in count():
                deployment.check()
                time.sleep(0.05)


def test_clients_that_leave_take_their_work_along():
    """A slot, a transfer or a file that a gone client keeps is missing for those who stay."""
    spec = MiniSpec(
        kind="pdd", link=Link(2.0, 50.0, 50.0), wan_backend="model", threshold_s=0.0, slots=2, context_tokens=1024,
        cache_bytes=3_000_000,
    )  # fmt: skip
    ask, draw = prompts(200), random.Random(1)
    with MiniDeployment(spec) as deployment, ThreadPoolExecutor(6) as workers:
        list(
            workers.map(lambda job: leave(deployment.url, *job), [(next(ask), draw.uniform(0, 0.5)) for _ in range(18)])
        )
        for _ in range(2):
            assert len(stream(deployment.url, next(ask), 150)[1]) == 150
        folder = Path(deployment.info["folder"])
        wait_for(lambda: not list((folder / "b").iterdir()), "B to let go of what nobody waits for", 10)
        figures = {metric: value for _, metric, value in deployment.stats()}
        with pytest.raises(urllib.error.HTTPError, match="403"):  # its work is for whoever started it
            urllib.request.urlopen(f"{deployment.url}/exactness", b'{"single": "http://127.0.0.1:1"}', timeout=10)
        kept = [path.stat().st_size for path in (folder / "a").iterdir()]
    seen = figures["requests_ok"] + figures["requests_cancelled"]
    assert seen <= 20 and figures["requests_cancelled"] > 5  # who leaves at once may never have been heard
    assert sum(kept) == figures["cache_bytes"] <= spec.cache_bytes


def leave(url, ids, seconds):
    """Begin a request and hang up."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": ids, "max_tokens": 400, "stream": True, "ignore_eos": True})
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        time.sleep(seconds)


def test_contexts(tmp_path):
    """P's cache: the longest shared prefix is found, what a longer one contains goes, and no file in use does."""
    contexts = Contexts(tmp_path, 250)

    def add(*ids):
        name = contexts.new_name()
        (tmp_path / name).write_bytes(b"x")
        return contexts.add(name, np.array(ids, np.int32), 100)

    def files():
        return {path.name for path in tmp_path.iterdir()}

    short, other = add(1, 2, 3), add(1, 9)
    assert contexts.best(np.array([1, 2, 7], np.int32)) == (short, 2)
    assert contexts.best(np.array([5], np.int32)) == (None, 0)
    with contexts.pinned(short):
        longer = add(1, 2, 3, 4)
        assert short.name in files()  # somebody reads it
    assert files() == {other.name, longer.name}
    assert contexts.best(np.array([1, 2, 3, 8], np.int32)) == (longer, 3)
    with contexts.pinned(add(6)):
        pass
    assert other.name not in files() and contexts.evicted == 1  # the least recently used
    assert contexts.n_bytes == 200


UP_OVER_PACKETS = ("up", "pdd", "--engine", "llamacpp", "--wan", "tun", "--one-way-ms", "1", "--rate-mbit", "200")


@pytest.mark.parametrize("when", ["serving", "starting"])
def test_nothing_stays_after_sigkill(when):
    """A killed `up` must leave no server, no namespace and no model file behind."""
    process = start(*UP_OVER_PACKETS)
    try:
        if when == "serving":
            assert " at http://" in process.stdout.readline()
        else:
            wait_for(lambda: _model_folder(_children(process)) is not None, "its first server")
        children = _children(process)
        folder = _model_folder(children)
        assert folder.is_dir() and (len(children) >= 5 or when == "starting")
    finally:
        process.kill()
        process.communicate(timeout=20)
    wait_for(lambda: not any(_alive(child) for child in children), "its processes to end")
    wait_for(lambda: not folder.exists(), "its folder to go")


def _children(process):
    mine = f"PPid:\t{process.pid}\n"
    return [path.parent for path in Path("/proc").glob("[0-9]*/status") if mine in _read(path)]


def _model_folder(children):
    """Where the servers among these have their model from; None while there is no server."""
    command = " ".join(_read(child / "cmdline") for child in children).replace("\0", " ")
    return Path(command.split("/model.gguf")[0].split()[-1]) if "/model.gguf" in command else None


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def _alive(process):
    status = _read(process / "status")
    return bool(status) and "State:\tZ" not in status


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('deployment = "pdd"\ndrc = true', "a slot file holds the whole sequence"),
        ('deployment = "pdd"\nspeed = 2', "speed is for emulated arms only"),
        ('deployment = "pdd"\nblock_tokens = 16', "block is 1 token"),
        ('deployment = "pdd"\ntoken_id_range = [0, 100]', "is not within"),
        ('deployment = "pdd"\nroles = { MD = { chip = "x", count = 2 } }', "one llama.cpp server a role"),
        ('deployment = "pdd"\nroles = { D = { chip = "x", count = 1 } }', "no role 'D'"),
        ('emulated = "pdd"', "exactly one"),
        ("", "belong together"),
        ('deployment = "pdd"\n[llamacpp]\nslots = 0', "llamacpp.slots = 0 is out of range"),
        ('deployment = "pdd"\n[llamacpp]\ngguf = "nothing.gguf"', "give token_id_range"),
        ('deployment = "pdd"\n[llamacpp]\ncontext_tokens = 64', "the longest request has"),
    ],
)
def test_bad_input(change, said, tmp_path, capsys):
    """What a deployment of real servers cannot do ends in a sentence before anything is started."""
    from pddbench.cli import main

    write_trace(tmp_path / "t.trace.jsonl", small_rows(1, turns=1))
    text = f'name = "x"\n[workload]\ntrace = "t.trace.jsonl"\n[[arm]]\nname = "a"\nengine = "llamacpp"\n{change}\n'
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["run", str(tmp_path / "x.toml"), "--dry-run", "--wan", "model"])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_live_history_needs_ids_that_llama_does_not_send(tmp_path, capsys):
    """It would start servers and send a whole first turn before it fails."""
    from pddbench.cli import main

    write_trace(tmp_path / "t.trace.jsonl", small_rows(1, turns=1))
    arm = '[[arm]]\nname = "a"\nengine = "llamacpp"\ndeployment = "pdd"\n'
    (tmp_path / "x.toml").write_text(f'name = "x"\n[workload]\ntrace = "t.trace.jsonl"\nhistory = "live"\n{arm}')
    with pytest.raises(SystemExit) as end:
        main(["run", str(tmp_path / "x.toml"), "--dry-run", "--wan", "model"])
    assert end.value.code == 2
    assert "does not send the ids of its replies" in capsys.readouterr().err


def test_dry_run_says_what_will_be_started(tmp_path):
    """Before real servers take this machine's cores, the plan names them and the KV that will cross."""
    write_trace(tmp_path / "small.trace.jsonl", small_rows(1))
    (tmp_path / "mini.toml").write_text(EXPERIMENT.format(one_way_ms=1))
    done = pddbench("run", tmp_path / "mini.toml", "--dry-run", "--json", "--wan", "model")
    plan = json.loads(done.stdout)
    assert plan["wan_bytes_planned"]["baseline"] == 0
    assert plan["wan_bytes_planned"]["pdd"] == 4096 * plan["input_tokens"]
