"""What a stream meant: outcome, stamps, tokens. Pure, and run after the measurement, from raw reads and their stamps.

Rules. The first token is the first chunk that carries any (content, reasoning, tool call, text), never a role-only or
empty one. The latency ends at the last token, not at the usage chunk or `[DONE]`. Tokens are counted by the server's
usage, never by chunks. A stream without a finish reason is `truncated`, and what had come is kept.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import Any, Literal

import msgspec

from pddbench.replay import credentials
from pddbench.replay.chunks import body_message
from pddbench.replay.reader import StreamReader, whole, word
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
    """The meaning of one exchange, whatever it is: never raises for anything a server sent. No credential is in it."""
    result = _interpret(reads, facts)
    if result.error:
        result.error = credentials.hide(result.error)
    if result.finish_reason:
        result.finish_reason = credentials.hide(result.finish_reason)
    return result


def _interpret(reads: Sequence[Read | RawRead], facts: Facts) -> StreamResult:
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
    reader = StreamReader([read[1] for read in reads])
    reader.run()
    _fill(result, reader, reads)
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


def _judge(result: StreamResult, reader: StreamReader, facts: Facts) -> None:
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


def _fill(result: StreamResult, reader: StreamReader, reads: Sequence[Read | RawRead]) -> None:
    """Put what was read into a result, all but outcome and error."""
    times, token_reads = arrival_times(reads), reader.token_reads
    result.finish_reason = reader.finish_reason
    result.chunks = len(token_reads)
    result.token_ns = [times[number] for number in token_reads]
    if reader.first_chunk_read is not None:
        result.first_chunk_ns = times[reader.first_chunk_read]
    _usage(result, reader.usage)
    result.chunk_tokens = _chunk_tokens(reader, result.completion_tokens)
    _facts(result, reader.facts)
    result.contents, result.token_ids = reader.contents, reader.token_ids
    if token_reads:
        first = reads[token_reads[0]]
        result.kernel_first_token_ns, result.user_first_token_ns = kernel_ns(first), first[0]
        result.stamps = whose_stamps(reads, token_reads)
        text = reader.text()
        result.output_sha256, result.text_crc = hashlib.sha256(text).hexdigest(), running_crc(text)
        _stamps(result)
    if reader.stage.count(None) < len(reader.stage):
        result.stage = reader.stage
        _stages(result)


def _chunk_tokens(reader: StreamReader, completion_tokens: int | None) -> list[int | None]:
    """Tokens of each chunk: by the extension's index, else by running usage, else one each if usage says so."""
    n = len(reader.token_reads)
    if reader.pdd_index.count(None) < n:
        return _steps([None if index is None else index + 1 for index in reader.pdd_index])
    if completion_tokens == n:
        return [1] * n
    if n > 1 and None not in reader.usage_so_far:
        return _steps(reader.usage_so_far)
    return [None] * n


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
    stamps = [read[2] if len(read) > 2 and isinstance(read[2], int) else read[0] for read in reads]
    return list(accumulate(stamps, max, initial=0))[1:]


def whose_stamps(reads: Sequence[Read | RawRead], token_reads: Sequence[int]) -> Stamps:
    """Whose stamps the token-bearing chunks have.

    Chunks share a stamp of the kernel when they came in one read, or it had joined their segments. That was our own
    lateness, not the server's doing, when we took them later than the request's usual gap (without one: than 1 ms)
    after it. When we came just after the last of them it is not seen there, but their stamp is late: see `_joined`.
    """
    distinct = {kernel_ns(reads[number]) for number in token_reads}
    if len(distinct) == len(token_reads) and None not in distinct:
        return "kernel"  # no two share a stamp
    used = sorted(set(token_reads))
    stamps = {number: kernel_ns(reads[number]) for number in used}
    known = {number: stamp for number, stamp in stamps.items() if stamp is not None}
    if len(known) < len(used):
        return "mixed" if known else "user"
    chunks = Counter(known[number] for number in token_reads)
    usual = _usual_gap_ns(chunks)
    late = any(chunks[stamp] > 1 and reads[number][0] - stamp >= usual for number, stamp in known.items())
    return "merged" if late or _joined(chunks, usual) else "kernel"


def _usual_gap_ns(chunks: Mapping[int, int]) -> int:
    """Median gap between stamps, of those before a chunk that has one for itself if there are any."""
    gaps = [(after - before, chunks[after]) for before, after in pairwise(sorted(chunks))]
    alone = sorted(gap for gap, count in gaps if count == 1) or sorted(gap for gap, _ in gaps)
    return alone[len(alone) // 2] if alone else 1_000_000


def _joined(chunks: Mapping[int, int], usual_ns: int) -> bool:
    """Whether chunks that share a stamp (stamp: how many) may have come one by one while nobody read.

    A server that sends them together sends them in its own time. Chunks that waited for us come late by half a usual
    gap or more, or at the beginning, where nothing tells how late, are more than the stamps after it usually have.
    """
    (_, first), *rest = ((stamp, chunks[stamp]) for stamp in sorted(chunks))
    if rest and first > sorted(count for _, count in rest)[len(rest) // 2]:
        return True
    return any(chunks[after] > 1 and 2 * (after - before) >= 3 * usual_ns for before, after in pairwise(sorted(chunks)))


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
    result.pipeline = word(facts.get("pipeline"))
    result.handoff_mode = word(handoff.get("mode"))
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
    gaps = list(map(sub, times[1:], times))
    result.max_gap_ns = max(gaps)
    known = [tokens for tokens in result.chunk_tokens[: gaps.index(result.max_gap_ns) + 1] if tokens is not None]
    result.max_gap_token = sum(known) if len(known) == gaps.index(result.max_gap_ns) + 1 else None


def _stages(result: StreamResult) -> None:
    """Tokens by the role that made them (a plain decoder counts as MD); unknown if any chunk's share is."""
    shares = dict.fromkeys(("p", "rld", "md"), 0)
    for stage, tokens in zip(result.stage, result.chunk_tokens, strict=True):
        role = "md" if stage == "d" else stage
        if tokens is None or role not in shares:
            return
        shares[role] += tokens
    result.tokens_p, result.tokens_rld, result.tokens_md = shares["p"], shares["rld"], shares["md"]
