"""Blind seams: what is stated on a control must hold on fresh streams, and nothing may be stated without one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddbench.analyze import seam_control
from pddbench.analyze.seam_control import GOAL, SHARE, calibrate
from pddbench.analyze.seams import Stream, candidates, plant


def stream(rng, loaded):
    """A reply of 100-200 gaps of 20 ms: 3% jitter; loaded: other people's prefill in 2% of the steps as well."""
    n = int(rng.integers(100, 200))
    gaps = 0.02 * np.exp(0.03 * rng.standard_normal(n))
    if loaded:
        gaps += (rng.random(n) < 0.02) * rng.uniform(0.01, 0.1, n)
    return Stream(gaps, np.ones(n))


@pytest.fixture(scope="module", params=[False, True], ids=["quiet", "loaded"])
def world(request):
    """A control calibrated once, and whether it is the loaded one."""
    rng = np.random.default_rng(1)
    return calibrate([stream(rng, request.param) for _ in range(270)]), request.param


def test_the_stated_stall_is_found_on_fresh_streams(world):
    """A detectability that does not hold on streams the calibration never saw is a promise nobody keeps."""
    calibration, loaded = world
    assert calibration.detectable_gaps is not None
    # quiet: about a gap; loaded: beyond the other stalls of up to five gaps
    assert calibration.detectable_gaps <= (16 if loaded else 3)
    rng, hit, fired, false, n = np.random.default_rng(77), 0, 0, 0, 250
    for _ in range(n):
        clean = stream(rng, loaded)
        place = int(rng.integers(10, 60))
        found = calibration.find(plant(clean, place, calibration.detectable_s))
        fired += found is not None
        hit += found is not None and abs(found[0] - place) <= 2
        false += calibration.find(stream(rng, loaded)) is not None
    recall = hit / n
    precision = SHARE * recall / (SHARE * fired / n + (1 - SHARE) * false / n)
    assert recall >= GOAL
    assert precision >= GOAL


def test_too_few_control_streams_state_nothing():
    """Below 240 control replies no threshold at a false rate of 1.3% exists: it must say so, not guess one."""
    rng = np.random.default_rng(1)
    found = calibrate([stream(rng, False) for _ in range(30)])
    assert found.detectable_gaps is None and "240 are needed" in found.why
    assert found.find(plant(stream(rng, False), 30, 5.0)) is None


def test_a_stall_among_others_is_not_detectable():
    """Where every reply stalls anyway a seam cannot be told, however long a table somebody wants."""
    rng = np.random.default_rng(2)
    wild = [Stream(0.02 * np.exp(2.0 * rng.standard_normal(120)), np.ones(120)) for _ in range(240)]
    found = calibrate(wild)
    assert found.detectable_gaps is None and "no stall of up to" in found.why


def test_chunks_held_back_together_are_no_stall():
    """After a lost packet the held chunks come at once: the pause was the network's, the producer never stopped."""
    gaps = np.full(120, 0.02)
    held = gaps.copy()
    held[60] += 10 * 0.02
    held[61:71] = 0.0
    network, producer = candidates(Stream(held, np.ones(120))), candidates(plant(Stream(gaps, np.ones(120)), 60, 0.2))
    assert network.excess_s.max() < 0.03
    assert producer.excess_s.max() == pytest.approx(0.2, rel=0.05)
    assert producer.gap[int(np.argmax(producer.excess_s))] == 60


def test_short_streams_are_left_out():
    """A reply of ten tokens tells no rate: it must be left out, not counted as seamless."""
    assert candidates(Stream(np.full(10, 0.02), np.ones(10))) is None


def test_lower_bound_of_a_share():
    """The statement rests on a bound, not on the point: 30 of 30 are surely only 92.6%."""
    assert seam_control.lower_bound(30, 30) == pytest.approx(0.1 ** (1 / 30))
    assert math.isclose(seam_control.lower_bound(0, 30), 0.0)
