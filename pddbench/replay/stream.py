"""What a stream meant: outcome, stamps, tokens. Pure, and run after the measurement, from raw reads and their stamps.

Rules. The first token is the first chunk that carries any (content, reasoning, tool call, text), never a role-only or
empty one. The latency ends at the last token, not at the usage chunk or `[DONE]`. Tokens are counted by the server's
usage, never by chunks. A stream without a finish reason is `truncated`, and what had come is kept.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from pddbench.replay.chunks import Choice, Chunk, body_message, content_text, decode, error_message, token_text
from pddbench.replay.sse import Event, SseError, SseParser
from pddbench.text import printable, redact_url

Read = tuple[int, bytes] | tuple[int, bytes, int]
"""A read of a response body: CLOCK_MONOTONIC ns, the bytes, and the kernel's receive stamp on that clock if known."""

Stamps = Literal["kernel", "merged", "mixed", "user"]
"""Whose stamps a request's times are: the kernel's, for all its reads; the same, but our process was late by a gap or
more, so that chunks of different times came in one read and share its stamp; the kernel's for some; our own."""

RawRead = tuple[int, bytes] | tuple[int, bytes, bytes]
"""A read as a transport keeps it: the kernel's stamp, if there is one, is still as the kernel gave it."""

Ending = Literal["eof", "broken", "connection", "timeout", "cancelled", "too_large"]
"""How an exchange ended: `broken` after the response had begun, `connection` before."""

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
CRC_BYTES = 64
_REFUSED_FINISH = ("error", "abort")


class Facts(msgspec.Struct):
    """What the transport knows of an exchange besides the body."""

    ending: Ending
    status: int | None = None
    content_type: str = ""
    location: str = ""
    headers_ns: int | None = None
    error: str | None = None
    headers_kernel_ns: int | None = None


class StreamResult(msgspec.Struct):
    """A request's answer. Stamps are those of the reads, the kernel's where it gave one that can be used (`stamps`);
    `user_first_token_ns` is our own stamp in any case. Lists have one element a token-bearing chunk.

    `chunk_tokens` holds None where nothing tells how many tokens a chunk carries. `second_token_ns` is None when
    both first tokens came in one chunk; where the size of the first chunk is not known it is the second chunk's
    stamp, an upper bound. `kv_wan_ns` is in the server's own (experiment) time. `contents` (what was said, without
    reasoning) and `token_ids` are of the first choice; ids are None unless every chunk that bears tokens has its own.
    """

    outcome: str = "ok"
    error: str | None = None
    finish_reason: str | None = None
    first_byte_ns: int | None = None
    first_chunk_ns: int | None = None
    first_token_ns: int | None = None
    second_token_ns: int | None = None
    last_token_ns: int | None = None
    kernel_first_token_ns: int | None = None
    user_first_token_ns: int | None = None
    stamps: Stamps | None = None
    chunks: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    max_gap_ns: int | None = None
    max_gap_token: int | None = None
    tokens_p: int | None = None
    tokens_rld: int | None = None
    tokens_md: int | None = None
    pipeline: str | None = None
    handoff_mode: str | None = None
    handoff_token: int | None = None
    handoff_rounds: int | None = None
    handoff_bytes: int | None = None
    kv_wan_bytes: int | None = None
    kv_wan_wire_bytes: int | None = None
    kv_wan_ns: int | None = None
    output_sha256: str | None = None
    text_crc: list[int] = msgspec.field(default_factory=list)
    token_ns: list[int] = msgspec.field(default_factory=list)
    chunk_tokens: list[int | None] = msgspec.field(default_factory=list)
    stage: list[str | None] = msgspec.field(default_factory=list)
    contents: list[str] = msgspec.field(default_factory=list)
    token_ids: list[int] | None = None

    @property
    def reply_tokens(self) -> int:
        """Length of the reply as it goes into a later prompt: its ids where they are told, else by usage or chunks."""
        if self.token_ids is not None:
            return len(self.token_ids)
        return self.completion_tokens if self.completion_tokens is not None else self.chunks or 0


def interpret(reads: Sequence[Read | RawRead], facts: Facts) -> StreamResult:
    """The meaning of one exchange, whatever it is: never raises for anything a server sent."""
    by_kernel = facts.headers_kernel_ns
    result = StreamResult(first_byte_ns=facts.headers_ns if by_kernel is None else by_kernel)
    if facts.status is None:
        result.outcome = "connection" if facts.ending in ("broken", "connection", "eof") else _not_ended_well(facts)
        result.error = facts.error
        return result
    if not 200 <= facts.status < 300:
        return _refused(result, reads, facts)
    if facts.content_type.partition(";")[0].strip().lower() != "text/event-stream":
        message = body_message(b"".join(read[1] for read in reads))
        kind = printable(facts.content_type, 60) or "no content type"
        result.outcome = "stream_error"
        result.error = f"the answer is {kind}, not text/event-stream" + (f": {message}" if message else "")
        return result
    reader = _Reader(reads)
    reader.run()
    reader.fill(result)
    _judge(result, reader, facts)
    return result


def _refused(result: StreamResult, reads: Sequence[Read | RawRead], facts: Facts) -> StreamResult:
    """A status other than 2xx: the server's own message, or where it wanted to send us."""
    result.outcome = "http_error"
    message = body_message(b"".join(read[1] for read in reads))
    if facts.status is not None and 300 <= facts.status < 400 and facts.location:
        message = f"redirects to {printable(redact_url(facts.location))}, not followed"
    result.error = f"HTTP {facts.status}" + (f": {message}" if message else "")
    return result


def _not_ended_well(facts: Facts) -> str:
    """The outcome of an exchange that did not come to its end."""
    return {"timeout": "timeout", "cancelled": "cancelled", "too_large": "stream_error"}.get(facts.ending, "truncated")


def _judge(result: StreamResult, reader: _Reader, facts: Facts) -> None:
    """Outcome and error of a stream that was one."""
    if reader.error:
        result.outcome, result.error = "stream_error", reader.error
    elif reader.done or (reader.finished and facts.ending in ("eof", "broken")):
        if not reader.finished:
            result.outcome, result.error = "truncated", "the stream ended with [DONE] but without a finish reason"
        elif reader.finish_reason in _REFUSED_FINISH:
            result.outcome = "stream_error"
            result.error = f"the server ended the stream with finish_reason {reader.finish_reason!r}"
    else:
        result.outcome = _not_ended_well(facts)
        result.error = facts.error or "the stream ended without a finish reason"
        if result.outcome == "truncated" and reader.dropped_bytes:
            result.error += f", inside an event ({reader.dropped_bytes} bytes dropped)"


class _Reader:
    """Goes through the events of a stream once, in order."""

    def __init__(self, reads: Sequence[Read | RawRead]) -> None:
        self._reads = reads
        self._times = arrival_times(reads)
        self.error: str | None = None
        self.done = False
        self.dropped_bytes = 0
        self.first_chunk_read: int | None = None
        self.token_reads: list[int] = []
        self.pdd_index: list[int | None] = []
        self.usage_so_far: list[int | None] = []
        self.stage: list[str | None] = []
        self.usage: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self._texts: dict[int, list[str]] = {}
        self._contents: list[str] = []
        self._ids: list[int] | None = []
        self._finish: dict[int, str | None] = {}

    @property
    def finished(self) -> bool:
        """Whether every choice seen has its finish reason."""
        return bool(self._finish) and all(reason is not None for reason in self._finish.values())

    @property
    def finish_reason(self) -> str | None:
        """The finish reason of the first choice."""
        return self._finish[min(self._finish)] if self._finish else None

    def run(self) -> None:
        """Parse until the end, `[DONE]`, or an error."""
        parser = SseParser()
        try:
            for number, read in enumerate(self._reads):
                for event in parser.feed(read[1], number):
                    self._event(event)
                    if self.done or self.error:
                        return
        except (SseError, ValueError) as error:
            self.error = str(error)
        self.dropped_bytes = parser.close()

    def _event(self, event: Event) -> None:
        data = event.data.strip()
        if not data:
            return
        if data == b"[DONE]":
            self.done = True
            return
        if event.event == b"error":
            self.error = f"the server sent an error: {body_message(data)}"
            return
        chunk = decode(data)
        if chunk.error or chunk.object == "error":
            message = error_message(chunk.error or chunk.message or "no message")
            self.error = f"the server sent an error: {message}"
            return
        self._chunk(chunk, event.read)

    def _chunk(self, chunk: Chunk, read: int) -> None:
        if self.first_chunk_read is None:
            self.first_chunk_read = read
        if isinstance(chunk.usage, dict):
            self.usage = chunk.usage
        pdd = chunk.pdd if isinstance(chunk.pdd, dict) else {}
        if pdd:
            self.facts.update({key: pdd[key] for key in ("pipeline", "eager", "handoff", "kv") if key in pdd})
        bearing = [self._choice(choice) for choice in chunk.choices or ()]
        if any(bearing):
            self.token_reads.append(read)
            self.pdd_index.append(whole(pdd.get("index")))
            self.stage.append(_name(pdd.get("stage")))
            usage = chunk.usage if isinstance(chunk.usage, dict) else {}
            self.usage_so_far.append(whole(usage.get("completion_tokens")))

    def _choice(self, choice: Choice) -> bool:
        """Note a choice's text and finish; whether it carries tokens."""
        if choice.finish_reason is not None or choice.index not in self._finish:
            self._finish[choice.index] = _finish_name(choice.finish_reason)
        text = token_text(choice)
        if text:
            self._texts.setdefault(choice.index, []).append(text)
        if choice.index == 0:
            self._for_history(choice, bool(text))
        return bool(text)

    def _for_history(self, choice: Choice, bearing: bool) -> None:
        """What a later prompt may repeat of this reply. Ids may come without text (a character in parts)."""
        if content := content_text(choice):
            self._contents.append(content)
        ids = choice.token_ids
        if isinstance(ids, list) and all(type(token) is int and 0 <= token <= _MAX_INT32 for token in ids):
            if self._ids is not None:
                self._ids += ids
        elif bearing:
            self._ids = None

    def fill(self, result: StreamResult) -> None:
        """Put what was read into a result, all but outcome and error."""
        times = self._times
        result.finish_reason = self.finish_reason
        result.chunks = len(self.token_reads)
        result.token_ns = [times[number] for number in self.token_reads]
        if self.first_chunk_read is not None:
            result.first_chunk_ns = times[self.first_chunk_read]
        _usage(result, self.usage)
        result.chunk_tokens = self._chunk_tokens(result.completion_tokens)
        _facts(result, self.facts)
        result.contents, result.token_ids = self._contents, self._ids or None
        if self.token_reads:
            first = self._reads[self.token_reads[0]]
            result.kernel_first_token_ns, result.user_first_token_ns = kernel_ns(first), first[0]
            result.stamps = whose_stamps(self._reads, self.token_reads)
            text = self._text()
            result.output_sha256, result.text_crc = hashlib.sha256(text).hexdigest(), running_crc(text)
            _stamps(result)
        if any(stage is not None for stage in self.stage):
            result.stage = self.stage
            _stages(result)

    def _chunk_tokens(self, completion_tokens: int | None) -> list[int | None]:
        """Tokens of each chunk: by the extension's index, else by running usage, else one each if usage says so."""
        if any(index is not None for index in self.pdd_index):
            return _steps([None if index is None else index + 1 for index in self.pdd_index])
        n = len(self.token_reads)
        if completion_tokens == n:
            return [1] * n
        if n > 1 and all(so_far is not None for so_far in self.usage_so_far):
            return _steps(self.usage_so_far)
        return [None] * n

    def _text(self) -> bytes:
        """The reply as UTF-8, choice by choice."""
        text = "".join("".join(self._texts[index]) for index in sorted(self._texts))
        return text.encode("utf-8", "surrogatepass")


def running_crc(text: bytes) -> list[int]:
    """CRC-32 of the text's first 64, 128, … bytes and of all of it, signed 32-bit: equal as far as two texts are."""
    marks, crc = [], 0
    for start in range(0, len(text), CRC_BYTES):
        crc = zlib.crc32(text[start : start + CRC_BYTES], crc)
        marks.append(crc - (1 << 32) if crc >= 1 << 31 else crc)
    return marks


def kernel_ns(read: Read | RawRead) -> int | None:
    """The kernel's stamp of a read on our clock; None where there is none, or it is still raw."""
    stamp = read[2] if len(read) > 2 else None
    return stamp if isinstance(stamp, int) else None


def arrival_times(reads: Sequence[Read | RawRead]) -> list[int]:
    """When each read's last byte arrived: the kernel's stamp where there is one, else ours; never going back."""
    out: list[int] = []
    latest = 0
    for read in reads:
        stamp = kernel_ns(read)
        latest = max(latest, read[0] if stamp is None else stamp)
        out.append(latest)
    return out


def whose_stamps(reads: Sequence[Read | RawRead], token_reads: Sequence[int]) -> Stamps:
    """Whose stamps the token-bearing chunks have.

    Chunks share a stamp of the kernel when they came in one read, or it had joined their segments. They were merged by
    our own lateness when we took them later than the request's median gap (without a gap: than 1 ms) after it.
    """
    used = sorted(set(token_reads))
    stamps = {number: kernel_ns(reads[number]) for number in used}
    known = {number: stamp for number, stamp in stamps.items() if stamp is not None}
    if len(known) < len(used):
        return "mixed" if known else "user"
    gaps = sorted(after - before for before, after in pairwise(known.values()) if after > before)
    limit = gaps[len(gaps) // 2] if gaps else 1_000_000
    chunks = Counter(known[number] for number in token_reads)
    late = any(chunks[stamp] > 1 and reads[number][0] - stamp >= limit for number, stamp in known.items())
    return "merged" if late else "kernel"


def whole(value: Any, limit: int = _MAX_INT32) -> int | None:
    """A count a server sent: a whole number in [0, limit], else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= limit:
        return None
    return int(value) if value == int(value) else None


def _name(value: Any) -> str | None:
    return printable(value, 40) if isinstance(value, str) and value else None


def _finish_name(value: Any) -> str | None:
    """A finish reason as a word (one server sends an object with a `type`)."""
    if isinstance(value, dict):
        value = value.get("type") or "given"
    return None if value is None else printable(str(value), 40) or "given"


def _steps(totals: Sequence[int | None]) -> list[int | None]:
    """Differences of running totals; None where one is missing or does not grow."""
    out: list[int | None] = []
    before: int | None = 0
    for total in totals:
        out.append(total - before if total is not None and before is not None and total > before else None)
        before = total
    return out


def _usage(result: StreamResult, usage: dict[str, Any]) -> None:
    result.prompt_tokens = whole(usage.get("prompt_tokens"))
    result.completion_tokens = whole(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        result.cached_tokens = whole(details.get("cached_tokens"))
    if result.cached_tokens is None:  # DeepSeek's own name for it
        result.cached_tokens = whole(usage.get("prompt_cache_hit_tokens"))


def _facts(result: StreamResult, facts: dict[str, Any]) -> None:
    """Facts of the `pdd` extension."""
    handoff = facts.get("handoff") if isinstance(facts.get("handoff"), dict) else {}
    kv = facts.get("kv") if isinstance(facts.get("kv"), dict) else {}
    assert isinstance(handoff, dict) and isinstance(kv, dict)
    result.pipeline = _name(facts.get("pipeline"))
    result.handoff_mode = _name(handoff.get("mode"))
    result.handoff_token = whole(handoff.get("token"))
    result.handoff_rounds = whole(handoff.get("rounds"))
    result.handoff_bytes = whole(handoff.get("bytes"), _MAX_INT64)
    result.kv_wan_bytes = whole(kv.get("bytes"), _MAX_INT64)
    result.kv_wan_wire_bytes = whole(kv.get("wire_bytes"), _MAX_INT64)
    result.kv_wan_ns = whole(kv.get("ns"), _MAX_INT64)


def _stamps(result: StreamResult) -> None:
    """First, second and last token, and the largest gap between chunks with the token that ended it."""
    times = result.token_ns
    result.first_token_ns, result.last_token_ns = times[0], times[-1]
    if len(times) < 2:
        return
    bundled = result.completion_tokens is not None and result.completion_tokens > len(times)
    first = result.chunk_tokens[0]
    if first == 1 or (first is None and not bundled):  # of a bundled stream nobody knows which chunk held it
        result.second_token_ns = times[1]
    gaps = [after - before for before, after in pairwise(times)]
    result.max_gap_ns = max(gaps)
    before = result.chunk_tokens[: gaps.index(result.max_gap_ns) + 1]
    known = [tokens for tokens in before if tokens is not None]
    result.max_gap_token = sum(known) if len(known) == len(before) else None


def _stages(result: StreamResult) -> None:
    """Tokens by the role that made them (a plain decoder counts as MD); unknown if any chunk's share is."""
    shares = dict.fromkeys(("p", "rld", "md"), 0)
    for stage, tokens in zip(result.stage, result.chunk_tokens, strict=True):
        role = "md" if stage == "d" else stage
        if tokens is None or role not in shares:
            return
        shares[role] += tokens
    result.tokens_p, result.tokens_rld, result.tokens_md = shares["p"], shares["rld"], shares["md"]
