"""What a miniature deployment is made of, as one JSON-able value, and its checks."""

from __future__ import annotations

from typing import Literal

import msgspec

from pddbench.deploy.gguf import TinyLlama
from pddbench.wan.link import Link
from pddbench.wan.steps import Step

Kind = Literal["baseline", "naive", "pdd"]
HandOffMode = Literal["auto", "one_shot", "catch_up"]

ROLES: dict[str, tuple[str, ...]] = {"baseline": ("P", "D"), "naive": ("P", "D"), "pdd": ("P", "RLD", "MD")}
"""Roles of each kind, one server each; the last one is where the answer ends."""

SHAPE = TinyLlama(layers=4, width=256, heads=8, kv_heads=4, feed_forward=704)
"""The model of our own: 4,096 bytes of KV a token, about a millisecond a token on one core."""


class MiniSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment. `slots`, `context_tokens` (of a slot) and `threads` are those of each server.

    `gguf`: a model file; None: one is made (`SHAPE`, random weights from `seed`). `handoff`: `auto` is `one_shot` up to
    `catch_up_tokens` eager tokens, else `catch_up`: rounds while RLD goes on, until no more than that many are left.
    `cache_bytes`: limit of P's store of slot files, its prefix cache.
    """

    kind: Kind
    link: Link
    wan_backend: str
    slots: int = 4
    context_tokens: int = 8192
    threads: int = 1
    flash_attention: bool = False
    kv_type: Literal["f16", "f32"] = "f32"
    threshold_s: float = 0.4
    handoff: HandOffMode = "auto"
    catch_up_tokens: int = 64
    cache_bytes: int = 1 << 30
    gguf: str | None = None
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    served_model: str = "tiny"
    link_steps: tuple[Step, ...] = ()  # how the link changes, seconds after the run's zero

    @property
    def promises_exactness(self) -> bool:
        """Whether the same tokens as from a single process are to be expected."""
        return not self.why_inexact

    def planned_kv_bytes(self, prompts: list[int]) -> float | None:
        """KV bytes that prompts of these lengths send over the WAN, tokens; None where the model is not our own."""
        if self.kind == "baseline":
            return 0.0
        if self.gguf is not None:
            return None
        width = SHAPE.width // SHAPE.heads * SHAPE.kv_heads
        return 2.0 * SHAPE.layers * width * {"f16": 2, "f32": 4}[self.kv_type] * sum(prompts)

    @property
    def why_inexact(self) -> str:
        """Why tokens may differ from those of a single process; empty when they must not."""
        if self.flash_attention:
            return "flash attention splits its sums by the size of a batch"
        if self.kv_type != "f32":
            return "KV of 16 bits turns the last digit of a sum, which depends on the batch, into its fourth"
        if self.gguf is not None:
            return "weights of another file may be quantized, and its activations are then rounded by the batch"
        return ""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of ours is told on its stdin. `engines`: URL by role. `folder`: its slot files.

    `peer`: address and port of B's process, for A's. `listen`: address B's process is reached by. `token`: who knows it
    may have the replies compared.
    """

    spec: MiniSpec
    engines: dict[str, str]
    folder: str
    epoch_ns: int
    peer: tuple[str, int] | None = None
    listen: str = "127.0.0.1"
    http_fd: int = -1
    token: str = ""
