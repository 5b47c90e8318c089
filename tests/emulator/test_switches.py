"""The switches of an experiment reach the deployment, and wrong ones end in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddbench.deploy import presets
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.hardware import HARDWARE, stage_figures
from pddbench.errors import InputError
from pddbench.runner.simulate import simulate_frame
from pddbench.workload.experiment import Arm, Cost, EmulatorOptions, Experiment, Mechanisms, Role, RoleChange, Workload
from pddbench.workload.load import load_experiment

ROOT = Path(__file__).parents[2]
DOCS = Path(__file__).parents[2] / "docs"


def spec_of(arm, options=None):
    """The deployment of an arm."""
    given = Experiment(
        name="x", workload=Workload(trace=""), arm=[arm], emulator=options or EmulatorOptions(), cost=Cost()
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
        row = (
            f"| {chip.name} | {chip.peak_tflops:g} | {chip.memory_gb:g} | {chip.memory_tb_s:g} | "
            f"{chip.interconnect_gb_s:g} | {figures['flop_a_byte']:.0f} | {figures['prefill_s']:.2f} | "
            f"{figures['decode_ms']:.1f} | {figures['kv_tokens'] / 1e6:.1f} |"
        )
        assert row in text


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
