"""The switches of an experiment reach the deployment, and wrong ones end in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddbench.deploy import presets
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.hardware import H200, HARDWARE, break_even, stage_costs, stage_figures
from pddbench.errors import InputError
from pddbench.runner.simulate import simulate_frame
from pddbench.workload.experiment import Arm, Cost, EmulatorOptions, Experiment, Mechanisms, Role, RoleChange, Workload
from pddbench.workload.load import load_experiment

ROOT = Path(__file__).parents[2]
DOCS = Path(__file__).parents[2] / "docs"


def spec_of(arm, options=None, cost=None):
    """The deployment of an arm."""
    given = Experiment(
        name="x", workload=Workload(trace=""), arm=[arm], emulator=options or EmulatorOptions(), cost=cost or Cost()
    )
    return presets.emulator_spec(arm, given, "model")


def test_every_switch_is_one_of_the_deployment():
    """Without it, a key could be accepted and do nothing."""
    ours = set(EmulatorSpec.__struct_fields__) | {"extend_us"}
    assert set(Mechanisms.__struct_fields__) <= ours
    arm = Arm(name="a", emulated="pdd", handoff="catch_up", catch_up_tokens=7, extend_us=100.0)
    spec = spec_of(arm, EmulatorOptions(catch_up_tokens=9, kv_flows=3))
    assert (spec.handoff, spec.catch_up_tokens, spec.kv_flows) == ("catch_up", 7, 3)
    assert all(role.chip.extend_e1_s == pytest.approx(1e-4) for role in spec.roles.values())


def test_nothing_is_switched_on_by_default():
    """Without it, a new mechanism could change what older experiments measure."""
    spec = spec_of(Arm(name="a", emulated="pdd"))
    assert not spec.changes and spec.chunk_tokens == 0 and spec.handoff == "one_shot" and spec.policy == "two"
    assert (spec.placement, spec.tokens_per_step, spec.kv_flows, spec.kv_warm) == ("pool", 1.0, 1, False)
    assert all(role.kv_tokens is None and role.cache_tokens is None for role in spec.roles.values())


@pytest.mark.parametrize(
    ("arm", "sentence"),
    [
        ({"emulated": "naive", "handoff": "catch_up"}, "handoff is a matter of pdd arms only"),
        ({"emulated": "pdd", "tokens_per_step": 0.5}, "tokens_per_step = 0.5 is out of range"),
        ({"emulated": "pdd", "kv_flows": 0}, "kv_flows = 0 is out of range"),
        ({"emulated": "pdd", "chunk_tokens": -1}, "chunk_tokens = -1 is out of range"),
        ({"emulated": "pdd", "changes": [RoleChange(at_s=1.0, role="D", count=1)]}, "no role 'D'"),
        ({"emulated": "pdd", "changes": [RoleChange(at_s=1.0, role="MD", count=0)]}, "not 0"),
        ({"emulated": "pdd", "changes": [RoleChange(at_s=float("nan"), role="MD", count=1)]}, "at_s must be 0 or more"),
        ({"emulated": "pdd", "roles": {"MD": Role(chip="B", count=1, kv_tokens=0)}}, "kv_tokens = 0 is out of range"),
        ({"emulated": "pdd", "roles": {"MD": Role(chip="C", count=1)}}, "unknown chip 'C'"),
    ],
)
def test_a_wrong_switch_is_one_sentence(arm, sentence):
    """Without it, a wrong value would be taken, or end in a traceback."""
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        spec_of(Arm(name="a", **arm))


def test_the_docs_show_the_chips_as_they_are():
    """Without it, the table that says which chip suits which stage could be of other figures."""
    text = (DOCS / "emulator.md").read_text()
    for chip in HARDWARE.values():
        figures = stage_figures(chip)
        price = "none found" if chip.price is None else f"{chip.price.amount:g} {chip.price.currency}"
        row = (
            f"| {chip.name} | {chip.peak_tflops:g} | {chip.memory_gb:g} | {chip.memory_tb_s:g} | "
            f"{chip.interconnect_gb_s:g} | {price} | {figures['flop_a_byte']:.0f} | {figures['prefill_s']:.2f} | "
            f"{figures['decode_ms']:.1f} | {figures['kv_tokens'] / 1e6:.1f} |"
        )
        assert row in text
        costs, even = stage_costs(chip), break_even(chip, H200)
        cells = ["–", "–"]
        if costs is not None:
            cells = [f"{cost:.2f} {chip.price.currency}" for cost in (costs.prefill, costs.decode)]
        assert f"| {chip.name} | {' | '.join(cells)} | {even.prefill:.0%} | {even.decode:.0%} |" in text


def test_which_chip_suits_which_stage():
    """Without it, the docs could say so of chips whose figures say otherwise, or a price could have no source."""
    found = {name: stage_figures(chip) for name, chip in HARDWARE.items()}
    assert found["H20"]["prefill_s"] / found["H800"]["prefill_s"] == pytest.approx(6.4, abs=0.05)
    assert found["H20"]["decode_ms"] < found["H800"]["decode_ms"] and found["H800"]["kv_tokens"] == 0
    even = break_even(HARDWARE["H20"], H200)
    assert 1 / 7 < even.prefill < 1 / 6 and 0.75 < even.decode < 0.85
    priced = [chip.price for chip in HARDWARE.values() if chip.price is not None]
    assert len(priced) >= 3 and all(price.amount > 0 and "2026-" in price.source for price in priced)


@pytest.mark.parametrize(("chip", "hint"), [("H200x8", "63.3 USD an hour were asked"), ("H800x8", "no public one is")])
def test_a_chip_without_a_price_is_one_sentence(chip, hint):
    """Without it, a cost would be computed from a price that nobody gave."""
    arm = Arm(name="a", emulated="pdd", roles={"MD": Role(chip=chip, count=1)})
    with pytest.raises(InputError, match=f"chip '{chip}' has no price: give .cost. chips one for '{chip}'.*{hint}"):
        spec_of(arm, cost=Cost(chips={"A": 1.0}))


def test_the_docs_name_every_switch():
    """Without it, a mechanism could exist that nobody can find."""
    text = (DOCS / "emulator.md").read_text()
    missing = [name for name in Mechanisms.__struct_fields__ if f"`{name}`" not in text]
    assert not missing


def frame(**arm):
    """The rows of a small simulated run of the quickstart's trace."""
    experiment = load_experiment(ROOT / "workloads/quickstart/experiment.toml")
    experiment.workload.limit_requests = 120
    experiment.arm = [Arm(name="pdd", emulated="pdd", **arm)]
    return simulate_frame(experiment)


def test_a_change_comes_when_it_is_due():
    """Without it, instances that leave in a million seconds are gone before the first request."""
    with pytest.raises(InputError, match="4 are there"):
        frame(changes=[RoleChange(at_s=1e6, role="P", count=-99)])
    far = frame(changes=[RoleChange(at_s=1e6, role="P", count=-4)])
    assert (far["outcome"] == "ok").all()
    now = frame(changes=[RoleChange(at_s=1.0, role="P", count=-4)])
    assert (now.loc[now["due_ns"] > 2e9, "outcome"] != "ok").all() and (now["outcome"] == "ok").any()


def test_sessions_are_spread_over_instances():
    """Without it, a shared system prompt sends every session to one instance, however many there are."""
    slow, quick = (frame(placement="session", roles={"P": Role(chip="A", count=n)})["first_token_ns"] for n in (1, 8))
    assert (quick < slow).mean() > 0.5 and not (quick == slow).all()
