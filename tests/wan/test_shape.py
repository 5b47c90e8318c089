"""The figures of a direction, and the words and lines that netem and the TUN emulator get for them."""

import re
from pathlib import Path

import pytest

from pddbench.errors import InputError
from pddbench.wan.link import PROFILES
from pddbench.wan.netem import mismatches, netem_arguments
from pddbench.wan.shape import Gilbert, Shape, shape_of
from pddbench.wan.tun import offload, set_line


def test_queue_limit_grows_with_rate_and_delay():
    """netem's own limit of 1000 packets drops on a long fast line, which looks like congestion."""
    assert Shape(1.0, 100.0).limit_packets == 10_000
    assert Shape(15.0, 10_000.0).limit_packets == 18_750  # 1.5 * 10 Gbit/s * 15 ms / (8 * 1500)
    assert Shape(15.0, 10_000.0, mtu_bytes=9000).limit_packets == 10_000


def test_jitter_without_rate_is_refused():
    """netem then reorders packets, and a 10 MB transfer takes 15 times as long."""
    with pytest.raises(InputError, match="reorders"):
        Shape(10.0, None, jitter_ms=1.0)


def test_netem_arguments_are_complete():
    """A figure that does not reach tc is silently not applied."""
    words = netem_arguments(Shape(15.0, 1000.0, jitter_ms=2.0, loss_pct=0.1))
    assert words == ["limit", "10000", "delay", "15000us", "2000us", "distribution", "normal",
                     "loss", "random", "0.1%", "rate", "1000000000bit"]  # fmt: skip
    words = netem_arguments(Shape(0.0, None, gilbert=Gilbert(1.0, 25.0, 80.0, 0.5)))
    assert words == ["limit", "10000", "delay", "0us", "loss", "gemodel", "1%", "25%", "80%", "0.5%"]


def test_a_read_back_that_differs_is_named():
    """`tc qdisc replace` keeps the old rate, and a run would believe the new one."""
    shape = Shape(15.0, 1000.0, loss_pct=0.1)
    good = {"limit": 10000, "delay": {"delay": 0.015, "jitter": 0.0}, "loss-random": {"loss": 0.001},
            "rate": {"rate": 125000000}}  # fmt: skip
    assert mismatches(shape, good) == []
    for key, value in (
        ("rate", {"rate": 12500000}),
        ("delay", {"delay": 0.0151}),
        ("limit", 1000),
        ("loss-random", {}),
    ):
        wrong = mismatches(shape, {**good, key: value})
        assert len(wrong) == 1 and wrong[0].startswith(key), (key, wrong)
    assert mismatches(Shape(15.0, 1000.0), good), "a loss that nobody asked for"


def test_what_nobody_asked_of_netem_is_named():
    """Half of all packets twice, or a twentieth of them with a wrong bit, was a link as asked."""
    good = {"limit": 10000, "delay": {"delay": 0.015, "jitter": 0, "correlation": 0}, "ecn": False, "gap": 0, "seed": 7,
            "rate": {"rate": 125000000, "packetoverhead": 0, "cellsize": 0, "celloverhead": 0}}  # fmt: skip
    assert mismatches(Shape(15.0, 1000.0), good) == []
    for key, value in (
        ("duplicate", {"duplicate": 0.5, "correlation": 0}),
        ("corrupt", {"corrupt": 0.05, "correlation": 0}),
        ("reorder", {"reorder": 0.5, "correlation": 0}),
        ("slot", {"min-delay": 0.02, "max-delay": 0.03, "packets": 0, "bytes": 0}),
        ("loss-gemodel", {"p": 0.01, "r": 0.2, "1-h": 1.0, "1-k": 0}),
        ("rate", {**good["rate"], "packetoverhead": 500}),
    ):
        wrong = mismatches(Shape(15.0, 1000.0), {**good, key: value})
        assert len(wrong) == 1 and key in wrong[0], (key, wrong)


def test_gilbert_mean_and_burstiness():
    """The interval for losses that come in bursts is too narrow when they are taken for independent ones."""
    g = Gilbert(1.0, 19.0)
    assert g.loss_share == pytest.approx(0.05)
    assert g.variance_factor == pytest.approx(1 + 2 * 0.8 / 0.2)
    assert Gilbert(30.0, 70.0).variance_factor == pytest.approx(1.0), "no memory: independent"
    with pytest.raises(InputError):
        Gilbert(0.0, 0.0)
    with pytest.raises(InputError):
        Gilbert(120.0, 1.0)
    with pytest.raises(InputError, match="give one"):
        Shape(1.0, 10.0, loss_pct=1.0, gilbert=g)


def test_the_emulators_line_has_the_same_figures():
    """The TUN emulator would make another link than netem from the same profile."""
    line = set_line(1, Shape(15.0, 100.0, jitter_ms=0.5, loss_pct=0.1)).split()
    assert line == ["set", "1", "15000000", "500000", "1", "100000000", "0", "1", "0", "0.001", "15000000", "0"]
    assert set_line(0, Shape(0.0, None, gilbert=Gilbert(1.0, 25.0))).split()[6:10] == ["0.01", "0.25", "1", "0"]


def test_super_packets_only_on_fast_lines_without_loss():
    """A loss would hit 64 KB at once, and a slow line would be held by one packet for milliseconds."""
    assert offload(Shape(1.0, 1000.0)) and offload(Shape(1.0, None))
    assert not offload(Shape(1.0, 999.0)) and not offload(Shape(1.0, 1000.0, loss_pct=0.01))


def test_every_profile_is_a_shape():
    """A profile whose figures contradict each other would only fail on somebody's machine."""
    for link in PROFILES.values():
        shape = shape_of(link)
        assert (shape.delay_ms, shape.rate_mbit, shape.loss_pct) == (link.one_way_ms, link.rate_mbit, link.loss_pct)
        assert all(re.fullmatch(r"[a-z0-9.%-]+", word) for word in netem_arguments(shape))


def test_every_profile_is_listed_with_its_figures():
    """A user would choose a profile by figures that it does not have."""
    text = (Path(__file__).parents[2] / "docs" / "wan.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.]+) ms \| (\d+) Gbit/s \| (\d+) ([GM])bit/s \| ([\d.]+)%? \| (\d+)", text, re.M
    )
    said = {name: (float(ms), float(rate) * 1e3, float(flow) * (1e3 if unit == "G" else 1), float(loss), float(jitter))
            for name, ms, rate, flow, unit, loss, jitter in rows}  # fmt: skip
    fields = ("one_way_ms", "rate_mbit", "flow_rate_mbit", "loss_pct", "jitter_ms")
    assert said == {name: tuple(getattr(link, field) for field in fields) for name, link in PROFILES.items()}
