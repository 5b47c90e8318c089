"""The experiment file that `pddbench init` writes: short, commented, and accepted by `pddbench run` as it is."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pddbench.errors import InputError
from pddbench.wan.link import resolve_link
from pddbench.workload.load import load_experiment

_FIRST = 40  # requests of the trace for real servers
_EXAMPLE = Path("traces/agentic-small.trace.jsonl.zst")


@dataclass
class Wishes:
    """What the user said. `arms`: (name, base URL) of live endpoints; none: three arms that `engine` makes."""

    name: str = "mine"
    trace: str | None = None
    arms: list[tuple[str, str]] = field(default_factory=list)
    model: str | None = None
    target_profile: str = "openai"
    session_rate: float = 0.5
    repeats: int = 2
    ttft_ms: float = 2000.0
    wan_profile: str = "national"
    engine: str = "emulator"


def write_template(out: Path, wishes: Wishes, *, force: bool = False) -> None:
    """Write the file `out`; InputError when it exists, cannot be written, or would not be accepted by `run`."""
    if out.exists() and not force:
        raise InputError(f"{out} exists: --force replaces it, --out names another")
    text = template(wishes, out.parent)
    try:
        handle, name = tempfile.mkstemp(suffix=".toml", dir=out.parent)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from error
    draft = Path(name)
    try:
        os.close(handle)
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o644)
        try:
            resolve_link(load_experiment(draft).wan)
        except InputError as error:  # the draft's random name means nothing to the user
            raise InputError(str(error).replace(str(draft), str(out))) from None
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


def template(wishes: Wishes, folder: Path) -> str:
    """The text of the file; paths in it are relative to `folder`, where it will lie."""
    real = bool(wishes.arms)
    if real and wishes.engine != "emulator":
        raise InputError(f"--engine {wishes.engine} starts servers of its own: leave --endpoint out")
    exact = (real and wishes.target_profile != "openai") or not real
    return "\n".join(
        [
            "# Run with: pddbench run FILE   (first with --dry-run: shows requests, tokens and cost, sends nothing)\n"
            f"name = {_quoted(wishes.name)}\n",
            _workload(wishes, folder, exact),
            "[slo]                      # all that are given must hold for a request to count as good\n"
            f"ttft_sched_ms = {wishes.ttft_ms:g}       # first token, from when the request should have left\n"
            "max_gap_ms = 1000          # largest gap between chunks\n",
            _endpoints(wishes) if real else _servers(wishes) if wishes.engine == "llamacpp" else _emulated(wishes),
            _checks(wishes),
        ]
    )


def _workload(wishes: Wishes, folder: Path, exact: bool) -> str:
    pinned, free = "every reply has the recorded length", "the model says when to stop"
    output = f'"exact"           # {pinned}' if exact else f'"natural"         # {free}'
    return f"""[workload]
trace = {_quoted(_trace(wishes, folder))}
arrival = "poisson"        # open loop: sessions start whether or not the endpoint keeps up; or trace, gamma, constant
session_rate = {wishes.session_rate:g}         # sessions a second: start low
timing = "think"           # the next turn follows the reply and the recorded tool or think time
idle_cap_s = 2.0           # no wait inside a session is longer than this
prompt = "token_ids"       # exact, /v1/completions; or "text" for /v1/chat/completions
output = {output}
seed = 1
repeats = {wishes.repeats}                # an even number runs the arms A B B A: a drift then cancels out
{_limit(wishes)}
"""


def _limit(wishes: Wishes) -> str:
    if wishes.engine == "llamacpp":
        return f"limit_requests = {_FIRST}        # only the first of the trace: real servers compute every token"
    return "# limit_requests = 100     # only the first of the trace"


def _path(wishes: Wishes) -> Path:
    """The trace, seen from here."""
    if wishes.trace is None and not _EXAMPLE.is_file():
        raise InputError(
            "--trace: name one (pddbench trace synth --preset agentic-small --out agentic.trace.jsonl.zst makes one)"
        )
    path = Path(wishes.trace) if wishes.trace is not None else _EXAMPLE
    if not path.is_file():
        raise InputError(f"--trace {path}: no such file")
    return path


def _trace(wishes: Wishes, folder: Path) -> str:
    """The trace as the file shall name it."""
    path = _path(wishes)
    return str(path) if path.is_absolute() else os.path.relpath(path.resolve(), folder.resolve())


def _endpoints(wishes: Wishes) -> str:
    """A table for each live endpoint."""
    if wishes.model is None:
        raise InputError("--model: say which model the endpoints serve")
    arms = [
        f"""[[arm]]
name = {_quoted(name)}
base_url = {_quoted(url)}
model = {_quoted(wishes.model)}
profile = {_quoted(wishes.target_profile)}
# api_key_env = "MY_KEY"   # the environment variable with the key; the key itself is never saved
# roles = {{ P = {{ chip = "H800", count = 4 }}, D = {{ chip = "H20", count = 4 }} }}   # for cost
"""
        for name, url in wishes.arms
    ]
    cost = "# [cost]                   # any currency, an hour; needs roles in the arms\n"
    cost += "# chips = { H800 = 2.0, H20 = 1.2 }\n"
    return "\n".join([cost, *arms])


def _servers(wishes: Wishes) -> str:
    """Three arms of real llama.cpp servers on this machine."""
    names = (("baseline", "P and D on one side of the link"), ("naive", "D behind the link, KV files cross it first"),
             ("pdd", "a relay streams while the file crosses, then hands over token ids"))  # fmt: skip
    arms = [
        f'[[arm]]                    # {what}\nname = "{name}"\nengine = "llamacpp"\ndeployment = "{name}"\n'
        for name, what in names
    ]
    head = f"""[wan]
profile = {_quoted(wishes.wan_profile)}       # metro, regional, national, continental, congested; or one_way_ms, …
# backend = "model"        # auto (the best that works here), netem, tun (packets), model (a computed delay)

[llamacpp]                 # of each server; needs pip install 'pddbench[live]'
slots = 4
context_tokens = {_context_tokens(wishes)}     # of a slot: the longest of these requests fits
# gguf = "model.gguf"      # a model file; without one a tiny one is made
"""
    return "\n".join([head, *arms])


def _context_tokens(wishes: Wishes) -> int:
    """What the longest of the first requests needs, prompt and reply, in whole thousands."""
    from pddbench.trace.read import read_trace

    rows = read_trace(_path(wishes), None).rows[:_FIRST]
    longest = max((row.input_tokens + max(row.output_tokens, 1) for row in rows), default=1)
    return -(-(longest + 1) // 1024) * 1024


def _emulated(wishes: Wishes) -> str:
    """Three arms to learn with: only the chips are emulated."""
    names = (("baseline", "prefill and decode in one datacentre"), ("naive", "decode in another one, KV over the WAN"),
             ("pdd", "a relay streams while the KV crosses, then hands over token ids"))  # fmt: skip
    arms = [f'[[arm]]                    # {what}\nname = "{name}"\nemulated = "{name}"\n' for name, what in names]
    head = f"""[wan]
profile = {_quoted(wishes.wan_profile)}       # metro, regional, national, continental, congested; or one_way_ms, …
# backend = "model"        # auto (the best that works here), netem, tun (packets: they cost CPU), model

[emulator]
speed = 3.0                # experiment seconds a wall second; said in the first line of the answer
kv_scale = 100.0           # a hundredth of the KV bytes really crosses the sockets

[cost]                     # any currency, an hour
chips = {{ A = 2.0, B = 2.4 }}
line = 0.7
"""
    return "\n".join([head, *arms])


def _checks(wishes: Wishes) -> str:
    """A threshold that can be evaluated as it stands."""
    name = wishes.arms[0][0] if wishes.arms else "pdd"
    text = f"{name}.ttft_sched.p90 < {wishes.ttft_ms:g} ms"
    said = '# decided on the interval; a breach of "fail" ends with 99'
    return f'[check]                    {said}\n{_quoted(text)} = "warn"\n'


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's too, as long as nothing becomes a surrogate pair."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
