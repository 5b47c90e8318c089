"""A reply becoming events: tokens in order, chunks filled, the closing figures; where they go is the caller's."""

from __future__ import annotations

from collections.abc import Callable

from pddbench.deploy.emulator import openai
from pddbench.deploy.emulator.messages import Finish
from pddbench.deploy.emulator.reply import Piece, Reply


class Live:
    """One request on its way to its client: the reply so far, as events given to `write`; `on_done` when it is over."""

    def __init__(
        self, request: openai.Request, chunks: openai.Chunks, tokens_per_chunk: int, on_done: Callable[[], None]
    ) -> None:
        self.request, self._chunks, self._per_chunk = request, chunks, tokens_per_chunk
        self.reply = Reply(request.max_tokens)
        self.over = False
        self.all_tokens: list[int] = []
        self.error = ""
        self._on_done = on_done
        self._held: list[Piece] = []  # tokens waiting for their chunk to be full
        self._write_event: Callable[[bytes], None] | None = None
        self._before: list[bytes] = []  # written before the headers were out

    def attach(self, write: Callable[[bytes], None]) -> None:
        """The headers are out: events go to `write` from now on."""
        self._write_event = write
        for event in self._before:
            write(event)
        self._before = []

    def token(self, stage: str, index: int, token: int) -> None:
        """A token arrives from a cluster."""
        for piece in self.reply.accept(stage, index, token):
            if self.request.stream:
                self._hold(piece)
            else:
                self.all_tokens.append(piece[2])
        self.close_if_complete()

    def _hold(self, piece: Piece) -> None:
        """A chunk leaves when it is full, with the first token, and before the stage changes."""
        if self._held and self._held[-1][0] != piece[0]:
            self._flush()
        self._held.append(piece)
        last = piece[1] + 1 == self.request.max_tokens
        full = len(self._held) >= self._per_chunk or piece[1] == 0
        if last and not self.request.include_usage:
            return  # waits for the closing figures, which ride in the same chunk
        if last or full:
            self._flush(close=last)

    def _flush(self, finish: Finish | None = None, close: bool = False) -> None:
        self._write(self._chunks.tokens(self._held, finish, close))
        self._held = []

    def close_if_complete(self) -> None:
        """All is there: the closing events."""
        finish = self.reply.finish
        if finish is None or not self.reply.complete or self.over:
            return
        if self.request.stream:
            if self._held:
                self._flush(finish, close=True)
            if self.request.include_usage:
                self._write(self._chunks.usage(self.request, finish))
            self._write(openai.DONE)
        self._end()

    def fail(self, reason: str) -> None:
        """It cannot be completed: an error in the stream, never a silently wrong one."""
        if not self.over:
            self.error = reason
            if self.request.stream:
                self._write(self._chunks.error(reason))
            self._end()

    def _end(self) -> None:
        self.over = True
        self._on_done()

    def _write(self, event: bytes) -> None:
        if self._write_event is None:
            self._before.append(event)
        else:
            self._write_event(event)
