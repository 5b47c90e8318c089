"""What an emulated deployment is made of: chips, model, roles, link and policies, as one JSON-able value."""

from __future__ import annotations

from typing import Literal

import msgspec

from pddbench.wan.link import Link
from pddbench.wan.steps import Step

CROSSES = ("naive", "pdd")  # arms whose KV crosses the WAN


class Chip(msgspec.Struct, frozen=True):
    """A chip (or the group of chips one instance runs on) as the laws the emulator needs. Seconds throughout.

    Prefill of `u` fresh tokens on a prefix of `h`: `prefill_a_s + prefill_b_s*u + prefill_c_s*u*(h + u/2)`, and
    `prefill_step_s` for each step of chunked prefill. Decode step: `decode_c0_s + decode_c1_s*batch +
    decode_c2_s*(KV tokens of the batch)`. Extend-decode of `k` handed-over ids: `extend_e0_s + extend_e1_s*k`; the
    second part rides in a decode step (the batch waits for it), the first does not.
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
    decode_c2_s: float = 0.0
    prefill_step_s: float = 0.0


class Model(msgspec.Struct, frozen=True):
    """KV bytes of a context of n tokens: `kv_base_bytes + kv_token_bytes*n`."""

    name: str
    kv_token_bytes: float
    kv_base_bytes: float = 0.0
    source: str = ""
    layers: int = 61  # how finely KV can be streamed while prefill goes on


class RoleSpec(msgspec.Struct, frozen=True):
    """`count` instances of a role on a chip, and the bounds of one of them; None: no bound.

    `kv_tokens`: KV memory of running streams. `max_batch`: streams at once. `cache_tokens`, `cache_ttl_s`: size of
    the prefix cache (of the whole role when its instances share one) and how long unused blocks stay in it.
    """

    chip: Chip
    count: int
    kv_tokens: int | None = None
    max_batch: int | None = None
    cache_tokens: int | None = None
    cache_ttl_s: float | None = None


class RoleChange(msgspec.Struct, frozen=True):
    """Instances of a role lost (the last ones, `count` below 0) or added, at a model time of the deployment."""

    at_s: float
    role: str
    count: int


Placement = Literal["pool", "prefix", "session", "least_loaded"]
HandOffMode = Literal["one_shot", "catch_up", "dynamic", "direct_kv"]


class EmulatorSpec(msgspec.Struct, frozen=True):
    """Everything a deployment's processes must know; times in model seconds (wall seconds x `speed`).

    What each mechanism does, and what it is for, is in docs/emulator.md.
    """

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
    # engine
    chunk_tokens: int = 0  # token budget of a prefill step; 0: a prompt is one step
    chunk_packing: bool = True  # a tail chunk shares its step with the next prompt
    tokens_per_step: float = 1.0  # of a stream in a decode step: above 1 with MTP or speculation
    rld_cache: bool = True  # RLD shares P's cache: only un-hit KV crosses the fabric
    # router
    placement: Placement = "pool"  # of prompts on P: one queue and cache, or each instance its own
    md_placement: Literal["pool", "prefix"] = "pool"  # of KV on MD: one cache, or each instance its own
    threshold_tokens: int | None = None  # un-hit tokens above which P-RLD-MD is used; None: threshold_s decides
    policy: Literal["two", "three"] = "two"  # three: what misses more than relay_tokens ends on RLD (wrong on purpose)
    relay_tokens: int = 8192
    route_by: Literal["md", "p"] = "md"  # whose hit policy three looks at
    singular: Literal["off", "oracle", "predictor"] = "off"
    singular_tokens: int = 131_072
    singular_output_tokens: int = 500
    count_in_flight: bool = True  # KV under way to MD counts as present
    # transfer and hand-off
    kv_flows: int = 1  # parallel TCP flows of a transfer
    kv_warm: bool = False  # flows with open windows: no handshake, no slow start
    kv_streaming: bool = False  # layers are sent while later ones are computed
    cancel_finished: bool = False  # stop the KV of an answer that ended on RLD
    handoff: HandOffMode = "one_shot"
    catch_up_tokens: int = 64
    catch_up_rounds: int = 20
    switch_load: float = 8.0  # streams an RLD instance above which dynamic hands over in one shot
    kv_copy_s: float = 0.0245  # direct_kv: copying what arrived into the running stream (C10)
    ids_timeout_s: float = 5.0  # ids without an answer from MD are sent again after that
    changes: tuple[RoleChange, ...] = ()
    link_steps: tuple[Step, ...] = ()  # how the link changes; from the zero of the run on, experiment seconds
