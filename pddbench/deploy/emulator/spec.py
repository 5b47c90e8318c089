"""What an emulated deployment is made of: chips, model, roles, link and policies, as one JSON-able value."""

from __future__ import annotations

from typing import Literal

import msgspec

from pddbench.wan.link import Link

CROSSES = ("naive", "pdd")  # arms whose KV crosses the WAN


class Chip(msgspec.Struct, frozen=True):
    """A chip (or the group of chips one instance runs on) as the laws the emulator needs. Seconds throughout.

    Prefill of `u` fresh tokens on a prefix of `h`: `prefill_a_s + prefill_b_s*u + prefill_c_s*u*(h + u/2)`.
    Decode step with `batch` streams: `decode_c0_s + decode_c1_s*batch`. Extend-decode of `k` handed-over ids:
    `extend_e0_s + extend_e1_s*k`; the second part rides in a decode step (the batch waits for it), the first does not.
    """

    name: str
    prefill_a_s: float
    prefill_b_s: float
    prefill_c_s: float
    decode_c0_s: float
    decode_c1_s: float
    extend_e0_s: float
    extend_e1_s: float
    source: str = ""


class Model(msgspec.Struct, frozen=True):
    """KV bytes of a context of n tokens: `kv_base_bytes + kv_token_bytes*n`."""

    name: str
    kv_token_bytes: float
    kv_base_bytes: float = 0.0
    source: str = ""


class RoleSpec(msgspec.Struct, frozen=True):
    """`count` instances of a role on a chip."""

    chip: Chip
    count: int


class EmulatorSpec(msgspec.Struct, frozen=True):
    """Everything a deployment's processes must know; times in model seconds (wall seconds x `speed`)."""

    arm: Literal["baseline", "naive", "pdd"]
    roles: dict[str, RoleSpec]  # baseline, naive: P, D; pdd: P, RLD, MD
    model: Model
    link: Link
    fabric_gbit: float = 200.0
    speed: float = 1.0
    kv_scale: float = 100.0
    block_tokens: int = 64
    threshold_s: float = 0.4
    drc: bool = True
    first_token_from_p: bool = False
    tokens_per_chunk: int = 1
    wan_backend: str = "model"
    host: str = "127.0.0.1"
    port: int = 0
    served_model: str = "emulated"
