"""Goes through the events of one stream: what each chunk said, and which read brought it. Pure, nothing about time.

A stream is first taken as what nearly all are: events of one `data: ` line, most of which differ in a text only; those
are read in bulk. Whatever is not like that is read again event by event, by the whole of the format. Both ways note the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pddbench.replay.alike import alike, only_text
from pddbench.replay.chunks import Choice, Chunk, body_message, content_text, decode, error_message, token_text
from pddbench.replay.sse import Event, SseError, SseParser, plain_stream
from pddbench.text import printable

_MAX_INT32 = 2**31 - 1
_DONE = b"[DONE]"
_decode_plain = msgspec.json.Decoder(Chunk).decode


class StreamReader:
    """Goes through the events of a stream once, in order."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
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
        if self._pieces and not self._run_plain():
            self.run_carefully()

    def _run_plain(self) -> bool:
        """All at once, if every event is plain and a chunk; if not, nothing is noted."""
        stream = plain_stream(self._pieces)
        if stream is None:
            return False
        found = alike(stream.events)
        before, texts, after = (found.before, found.texts, found.after) if found else (stream.events, [], [])
        ending = after if texts else before
        done = bool(ending) and ending[-1] == _DONE
        if done:
            del ending[-1]
        try:
            first, rest = list(map(_decode_plain, before)), list(map(_decode_plain, after))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        if any(chunk.error or chunk.object == "error" for chunk in (*first, *rest)):
            return False
        self.done = done
        if first or texts:
            self.first_chunk_read = stream.numbers[0]
        self._chunks(first, stream.numbers)
        if texts:
            self._bear(texts, stream.numbers[len(first) : len(first) + len(texts)])
        self._chunks(rest, stream.numbers[len(first) + len(texts) :])
        return True

    def _chunks(self, chunks: list[Chunk], reads: Sequence[int]) -> None:
        """As `_chunk` for each."""
        for chunk, read in zip(chunks, reads, strict=False):
            text = only_text(chunk)
            if text:
                self._bear([text], (read,))
            else:
                self._chunk(chunk, read)

    def _bear(self, texts: list[str], reads: Sequence[int]) -> None:
        """Chunks that carry these texts of the first choice and nothing else; an empty one carries no token."""
        self._finish.setdefault(0, None)
        if "" in texts:
            reads = [read for read, text in zip(reads, texts, strict=True) if text]
            texts = [text for text in texts if text]
        if not texts:
            return
        nothing = [None] * len(texts)
        self._texts.setdefault(0, []).extend(texts)
        self._contents += texts
        self._ids = None
        self.token_reads += reads
        self.pdd_index += nothing
        self.stage += nothing
        self.usage_so_far += nothing

    def run_carefully(self) -> None:
        """Event by event, by the whole of the format."""
        parser = SseParser()
        try:
            for number, piece in enumerate(self._pieces):
                for event in parser.feed(piece, number):
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
            self.stage.append(word(pdd.get("stage")))
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

    def text(self) -> bytes:
        """The reply as UTF-8, choice by choice."""
        text = "".join("".join(self._texts[index]) for index in sorted(self._texts))
        return text.encode("utf-8", "surrogatepass")

    @property
    def contents(self) -> list[str]:
        """What was said, without reasoning, by the first choice."""
        return self._contents

    @property
    def token_ids(self) -> list[int] | None:
        """Ids of the first choice; None unless every chunk that bears tokens has its own."""
        return self._ids or None


def whole(value: Any, limit: int = _MAX_INT32) -> int | None:
    """A count a server sent: a whole number in [0, limit], else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= limit:
        return None
    return int(value) if value == int(value) else None


def word(value: Any) -> str | None:
    """A word a server sent, printable; None for anything else."""
    return printable(value, 40) if isinstance(value, str) and value else None


def _finish_name(value: Any) -> str | None:
    """A finish reason as a word (one server sends an object with a `type`)."""
    if isinstance(value, dict):
        value = value.get("type") or "given"
    return None if value is None else printable(str(value), 40) or "given"
