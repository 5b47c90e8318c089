"""From an answer to what live history keeps of it: the only thing that is parsed while a run is on."""

from __future__ import annotations

from pddbench.replay.stream import StreamResult
from pddbench.workload.history import Replies, Reply


def keep_reply(replies: Replies, index: int, result: StreamResult, needs_ids: bool) -> bool:
    """Keep the reply to request `index` for live history; False when later prompts cannot be made of it."""
    usable = result.token_ids is not None if needs_ids else bool(result.contents)
    if usable:
        replies.put(index, Reply(result.reply_tokens, result.token_ids, result.contents))
    return usable
