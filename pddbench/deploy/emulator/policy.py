"""Which way a request goes: the router's decisions, from what it can know when its prefill ends."""

from __future__ import annotations

from dataclasses import dataclass

from pddbench.deploy.emulator.spec import EmulatorSpec, Model


def kv_bytes(model: Model, tokens: int) -> int:
    """KV bytes of `tokens` tokens."""
    return round(model.kv_base_bytes + model.kv_token_bytes * tokens)


@dataclass(slots=True)
class Facts:
    """What is known of a request: lengths, un-hit tokens at P and MD, predicted transfer, roles that are there."""

    prompt_tokens: int
    max_tokens: int
    unhit_p: int
    unhit_md: int
    predicted_s: float
    rld: bool
    md: bool


def is_singular(spec: EmulatorSpec, facts: Facts) -> bool:
    """Whether a request counts as singular traffic: a very long input, few tokens out.

    `oracle` looks at the length of the answer, which nobody knows beforehand. `predictor` uses what can be known: a
    long prompt of which P had less than half.
    """
    if spec.singular == "off" or facts.prompt_tokens < spec.singular_tokens:
        return False
    if spec.singular == "oracle":
        return facts.max_tokens < spec.singular_output_tokens
    return 2 * facts.unhit_p > facts.prompt_tokens


def choose(spec: EmulatorSpec, facts: Facts) -> str:
    """The pipeline of a request; "" when no role is left that could decode it."""
    if spec.arm == "baseline":
        return "P-D"
    if spec.arm == "naive":
        return "P-MD" if facts.md else ""
    if not facts.md:
        return "P-RLD" if facts.rld else ""
    if not facts.rld:
        return "P-MD"
    if is_singular(spec, facts):
        return "P-RLD"
    if spec.policy == "three" and (facts.unhit_md if spec.route_by == "md" else facts.unhit_p) > spec.relay_tokens:
        return "P-RLD"
    if spec.threshold_tokens is not None:
        return "P-RLD-MD" if facts.unhit_md > spec.threshold_tokens else "P-MD"
    return "P-RLD-MD" if facts.predicted_s > spec.threshold_s else "P-MD"
