"""Whatever a user can get wrong is one sentence and the documented exit code, before any traffic, with nothing lost."""

import http.server
import json
import signal
import socket
import threading

import pytest
from run_kit import pddbench, small_rows, start, typed, write_trace

BASE = """
name = "x"
[workload]
trace = "t.trace.jsonl"
[[arm]]
name = "mine"
base_url = "http://127.0.0.1:{port}/v1"
model = "m"
"""


@pytest.fixture
def server():
    """An endpoint that answers every POST with what the test put into `answer`, and counts."""

    class Handler(http.server.BaseHTTPRequestHandler):
        answer = (200, "text/event-stream", b"")
        posts = 0

        def do_POST(self):
            type(self).posts += 1
            self.rfile.read(int(self.headers["Content-Length"]))
            status, kind, body = self.answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.send_error(404)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        Handler.port = running.server_port
        yield Handler
        running.shutdown()


@pytest.fixture
def folder(tmp_path):
    """A folder with a good trace and an experiment for a port."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(2))

    def experiment(port=1, **replace):
        text = BASE.format(port=port)
        for old, new in replace.items():
            text = text.replace(old, new)
        (tmp_path / "e.toml").write_text(text)
        return tmp_path

    return experiment


def one_sentence(done, code):
    """The process ended with `code` and one plain sentence as its last word."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert len(last) > 20
    return last


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


SERVED = [
    ((401, "application/json", b'{"error":{"message":"bad key"}}'), ["401", "bad key"]),
    ((404, "application/json", b'{"error":{"message":"no such model"}}'), ["404", "no such model"]),
    ((429, "text/plain", b"slow down"), ["429"]),
    ((503, "text/html", b"<html><body><h1>Service \x1b[31munavailable</h1>::error::x</body></html>"), ["503"]),
    ((200, "text/html", b"<html><body>hello</body></html>"), ["text/html, not text/event-stream"]),
    ((200, "text/event-stream", b'data: {"error":{"message":"no room"}}\n\n'), ["no room"]),
]


@pytest.mark.parametrize(("answer", "says"), SERVED)
def test_an_endpoint_that_does_not_serve(server, folder, answer, says):
    """Without it, the user gets a table of failures, or a traceback, instead of the server's own reason."""
    server.answer = answer
    out = folder(server.port) / "out"
    done = pddbench("run", out.parent / "e.toml", "--out", out)
    last = one_sentence(done, 1)
    assert all(words in last for words in [*says, "mine"])
    assert "\x1b" not in last and "<h1>" not in last
    assert server.posts == 1, "a failed preflight must not be retried, and no load may follow"
    assert json.loads((out / "manifest.json").read_text())["partial"] is True


def test_nobody_listens(folder):
    """Without it, a refused connection ends in a traceback."""
    path = folder(closed_port())
    last = one_sentence(pddbench("run", path / "e.toml", "--out", path / "out"), 1)
    assert "cannot connect" in last


def test_host_that_does_not_exist(folder):
    """Without it, a mistyped host ends in a traceback."""
    path = folder(1, **{"127.0.0.1:1": "nowhere.invalid:1"})
    done = pddbench("run", path / "e.toml", "--out", path / "out", "--yes")
    assert "nowhere.invalid" in one_sentence(done, 1)


def test_a_stranger_needs_a_yes(folder):
    """Without it, a typing error sends load to somebody else's endpoint."""
    path = folder(1, **{"127.0.0.1:1": "nowhere.invalid:1"})
    last = one_sentence(pddbench("run", path / "e.toml", "--out", path / "out"), 2)
    assert "--yes" in last
    assert not (path / "out").exists()


def broken_line_17(path):
    rows = small_rows(10)
    write_trace(path / "t.trace.jsonl", rows)
    lines = (path / "t.trace.jsonl").read_text().splitlines()
    lines[16] = lines[16][:30]
    (path / "t.trace.jsonl").write_text("\n".join(lines) + "\n")


BROKEN = [
    (broken_line_17, [], "t.trace.jsonl:17"),
    (lambda p: (p / "t.trace.jsonl").unlink(), [], "no such file"),
    (lambda p: (p / "t.trace.jsonl").write_text('{"hello": 1}\n'), [], "format"),
    (lambda p: (p / "t.trace.jsonl").write_text(""), [], "empty"),
    (lambda p: (p / "e.toml").write_text((p / "e.toml").read_text() + "retries = 3\n"), [], "retries"),
    (lambda p: (p / "e.toml").write_text(BASE.format(port=1) + "[slo]\nttft_ms = -5\n"), [], "slo.ttft_ms"),
    (
        lambda p: (p / "e.toml").write_text(BASE.format(port=1) + "[check]\n'mine.tftt.p90 < 3 s' = 'fail'\n"),
        [],
        "ttft",
    ),
    (lambda p: (p / "e.toml").write_text(BASE.format(port=1) + "[check]\n'mine.ttft.p90 < 3 kg' = 'fail'\n"), [], "kg"),
    (lambda p: (p / "out").mkdir() or (p / "out" / "x").touch(), [], "already exists"),
    (lambda p: (p / "out").touch(), [], "already exists"),
    (lambda p: None, ["--out", "/proc/nowhere/x"], "/proc/nowhere"),
    (lambda p: None, ["--wan", "pigeon"], "pigeon"),  # a URL arm only: wrong all the same
    (lambda p: (p / "e.toml").write_text(BASE.format(port=1).replace("t.trace.jsonl", "")), [], "trace is empty"),
    (lambda p: None, ["--max-cost", "nan"], "--max-cost nan"),
    (lambda p: None, ["--allow", "sendlag"], "send_lag"),
    (lambda p: None, ["--time-scale", "0"], "time_scale"),
    (lambda p: None, ["--idle-cap", "-1"], "idle_cap_s"),
    (lambda p: None, ["--max-cost", "1"], "cost_per_mtok"),
    (lambda p: None, ["--sed", "1"], "--seed"),
]


@pytest.mark.parametrize(("spoil", "flags", "says"), BROKEN)
def test_what_can_be_known_before_traffic(server, folder, spoil, flags, says):
    """Without it, a wrong file, key, unit or flag costs a run, or quietly changes it."""
    path = folder(server.port)
    spoil(path)
    flags = flags if "--out" in flags else ["--out", path / "out", *flags]
    last = one_sentence(typed("run", path / "e.toml", *flags), 2)
    assert says in last
    assert server.posts == 0


def test_named_backend_that_is_missing_is_an_error(folder):
    """Without it, a run without a WAN prints plausible numbers (TRAPS 44)."""
    path = folder(1)
    (path / "e.toml").write_text(BASE.format(port=1).split("base_url")[0] + 'emulated = "naive"\n')
    last = one_sentence(pddbench("run", path / "e.toml", "--wan", "netem", "--out", path / "out"), 2)
    assert "netem" in last


def test_force_replaces_run_folders_only(folder):
    """Without it, --force with a mistyped folder deletes somebody's work."""
    path = folder(closed_port())
    (path / "out").mkdir()
    (path / "out" / "thesis.txt").write_text("x")
    last = one_sentence(pddbench("run", path / "e.toml", "--out", path / "out", "--force"), 2)
    assert "not a run folder" in last
    assert (path / "out" / "thesis.txt").exists()


def test_misspelt_command():
    """Without it, a typing error gets a wall of help instead of the right name."""
    assert "replay" in one_sentence(typed("repaly"), 2)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--header", "sk-secret"], "NAME=VALUE"),
        (["--extra-body", "{"], "not valid JSON"),
        (["--goodput", "tfft:3"], "ttft"),
        (["--request-rate", "fast"], "fast"),
        (["--request-rate", "1", "--session-rate", "1"], "one of them"),
        (["--target-profile", "vlm"], "vllm"),
        (["--api-key-env", "PDDBENCH_NOT_SET"], "PDDBENCH_NOT_SET"),
        (["--token-id-range", "5"], "LOW:HIGH"),
        (["--base-url", "ftp://x"], "not an http"),
        (["--trace", ""], "trace is empty"),
        (["--base-url", "http://u:sk-secret@127.0.0.1:1", "--header", "Authorization=Bearer sk-secret"], "one of them"),
    ],
)
def test_replay_flags(folder, flags, says):
    """Without it, a wrong flag of `replay` ends in a traceback, or a secret is echoed."""
    path = folder(1)
    common = ["--trace", path / "t.trace.jsonl", "--model", "m", "--out", path / "out"]
    if "--base-url" not in flags:
        common += ["--base-url", "http://127.0.0.1:1"]
    done = typed("replay", *common, *flags)
    assert says in one_sentence(done, 2)
    assert "sk-secret" not in done.stderr


def test_a_full_disk_is_one_sentence(monkeypatch, capsys):
    """Without it, a full disk at the end of a long run ends in a traceback."""
    import errno

    from pddbench.cli import cli, main

    def full(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device", "results/x/requests")

    monkeypatch.setattr(cli, "main", full)
    with pytest.raises(SystemExit) as ended:
        main(["run", "x"])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "results/x/requests: No space left on device" in said and said.count("\n") == 1


def test_a_failed_preflight_does_not_block_the_corrected_command(server, folder):
    """Without it, the same command with the URL put right is refused because of an empty folder."""
    path = folder(closed_port())
    assert pddbench("run", path / "e.toml", "--out", path / "out").returncode == 1
    server.answer = (401, "application/json", b"{}")
    folder(server.port)
    assert "401" in one_sentence(pddbench("run", path / "e.toml", "--out", path / "out"), 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_preflight_that_hangs(tmp_path, folder, number):
    """Without it, Ctrl-C does nothing until the preflight's own timeout, and the exit code is another one."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        path = folder(silent.getsockname()[1])
        process = start("run", path / "e.toml", "--out", path / "out")
        silent.settimeout(60)
        while True:  # the first asks for the models and is sent away; the preflight itself is left hanging
            connection, _ = silent.accept()
            connection.settimeout(60)
            if connection.recv(4) == b"POST":
                break
            connection.close()
        process.send_signal(number)
        _, stderr = process.communicate(timeout=45)
        connection.close()
    assert process.returncode == 128 + number, stderr
    assert "Traceback" not in stderr


def test_secrets_of_any_url_spelling_stay_out(server, folder):
    """Without it, a password in a URL without a scheme, or with an upper-case one, stands in the manifest."""
    path = folder(server.port)
    server.answer = (401, "application/json", b'{"error":{"message":"no s3cret-word here"}}')
    for n, base in enumerate(("usr:s3cret-word@127.0.0.1", "HTTP://usr:s3cret-word@127.0.0.1")):
        out = path / f"out{n}"
        flags = ["--trace", path / "t.trace.jsonl", "--model", "m", "--out", out, "--header", "X-Custom=s3cret-word"]
        flags = flags if n else [*flags, "--extra-body", '{"nested":{"k":"s3cret-word"}}']
        url = f"{base}:{server.port}"
        done = pddbench("replay", *flags, "--base-url", url)
        assert done.returncode == 1, done.stderr
        kept = "".join(p.read_text(errors="replace") for p in out.rglob("*") if p.is_file())
        assert "s3cret-word" not in kept + done.stdout + done.stderr
    for bad in ("ftp://u:s3cret-word@h", "http://u:s3cret-word@h:99999", "http://[::1/v1"):
        done = typed("replay", "--trace", "x", "--model", "m", "--base-url", bad)
        one_sentence(done, 2)
        assert "s3cret-word" not in done.stderr
