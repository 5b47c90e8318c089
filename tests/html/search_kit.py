"""Made-up capacity searches: arms with a knee that we planted, written as `pddbench capacity` writes them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pddbench.report.capacity import document
from pddbench.runner.capacity import ArmSearch, Point, SearchOptions, State, judge

RUNS = ((1.0, 1.0), (1.5, 0.99), (1.8, 0.95), (2.0, 0.9), (2.1, 0.86), (2.4, 0.6), (3.0, 0.2))
ARMS = {"baseline": 1.0, "naive": 0.5, "pdd": 1.3}  # knees, in twos of sessions a second


def make_state(name: str = "made", arms: dict[str, float] | None = None, invalid: tuple[str, ...] = ()) -> State:
    """A finished search: seven runs an arm around its knee at 2 x its factor; prices that make all cost 16 an hour."""
    state = State(name=name, config_sha256="0", measured="simulated", target=0.9, half_width=0.05, budget=7,
                  warmup_s=10.0, run_s=60.0, slo={"ttft_sched_ms": 2000.0, "max_gap_ms": 1000.0}, currency="USD",
                  prices={"A": 2.0, "B": 2.0}, line=0.0, seed=1)  # fmt: skip
    for arm, factor in (arms or ARMS).items():
        points = [
            Point(rate=rate * factor, good=[round(100 * share)] * 3, total=[100] * 3, sessions=60, seed=i,
                  requests_a_session=5.0, input_tokens_a_session=5e4, cached_tokens_a_session=4e4,
                  output_tokens_a_session=500.0)
            for i, (rate, share) in enumerate(RUNS)
        ]  # fmt: skip
        points += [msgspec.structs.replace(points[0], invalid=[rule]) for rule in invalid]
        roles = {"P": {"chip": "A", "count": 4}, "D": {"chip": "A" if arm == "baseline" else "B", "count": 4}}
        found = ArmSearch(points=points, cost_per_hour=16.0, roles=roles, uses_line=arm != "baseline")
        judge(found, SearchOptions(budget=7))
        state.arms[arm] = found
    return state


def write_search(folder: Path, state: State) -> Path:
    """Write capacity.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "capacity.json").write_bytes(msgspec.json.encode(document(state)))
    return folder
