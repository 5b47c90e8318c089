"""How an arm's bodies are written, as plain data: a worker process makes the same bytes from it as we would."""

from __future__ import annotations

from typing import Any

import msgspec

from pddbench.runner.prepare import ArmSetup
from pddbench.workload.history import Replies
from pddbench.workload.plan import Plan
from pddbench.workload.prompts import BodyWriter, PromptBook


class WriterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `BodyWriter` and `PromptBook` need besides plan and salt; see there."""

    model: str
    chat: bool
    token_ids: bool
    fields: dict[str, Any]
    limit_field: str
    min_tokens: bool
    words: tuple[str, ...]
    overhead_tokens: int
    turn_overhead_tokens: int
    token_id_range: tuple[int, int]


def settings_of(setup: ArmSetup) -> WriterSettings:
    """The settings of an arm, as its preflight left them."""
    return WriterSettings(
        model=setup.arm.model or "emulated",
        chat=setup.chat,
        token_ids=setup.token_ids,
        fields=setup.fields,
        limit_field=setup.profile.chat_limit if setup.chat else "max_tokens",
        min_tokens=setup.profile.min_tokens and bool(setup.pin),
        words=setup.words,
        overhead_tokens=setup.overhead_tokens,
        turn_overhead_tokens=setup.turn_overhead_tokens,
        token_id_range=setup.arm.token_id_range if setup.token_ids else (0, len(setup.words)),
    )


def make_writer(settings: WriterSettings, plan: Plan, salt: str, replies: Replies | None = None) -> BodyWriter:
    """The bodies of `plan` under a salt; `replies` take part in them when history is live."""
    return BodyWriter(
        PromptBook(plan, salt, settings.token_id_range, replies),
        plan,
        model=settings.model,
        chat=settings.chat,
        token_ids=settings.token_ids,
        fields=settings.fields,
        limit_field=settings.limit_field,
        min_tokens=settings.min_tokens,
        words=settings.words,
        overhead_tokens=settings.overhead_tokens,
        turn_overhead_tokens=settings.turn_overhead_tokens,
    )


def writer_of(setup: ArmSetup, plan: Plan, salt: str, replies: Replies | None = None) -> BodyWriter:
    """The bodies of `plan` for an arm under a salt; `replies` as for `make_writer`."""
    return make_writer(settings_of(setup), plan, salt, replies)
