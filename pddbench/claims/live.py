"""Claims from a finished run with emulated or real endpoints: the same figures, measured on sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pddbench.analyze.dataset import Dataset
from pddbench.claims.model import Found, NotTestable, Row, Where, part, verdict
from pddbench.claims.scenes import cut
from pddbench.errors import InputError

INF = float("inf")


def open_live(folder: Path) -> Dataset:
    """The finished run in `folder`; `InputError` when it is none, or was simulated."""
    from pddbench.runfolder.load import load

    data = Dataset(load(folder))
    if data.run.manifest.get("simulated"):
        raise InputError(f"--live {folder}: a simulated run; give one of `pddbench run`")
    return data


def measure_live(data: Dataset) -> Iterator[Row]:
    """C7 and C8 from a run whose arms are told apart by kind (`baseline`, `naive`, `pdd`), or by those names."""
    arms = _kinds(data)
    emulated = all(data.arm_facts(name).get("emulated") for name in arms.values())
    where: Where = "emulated" if emulated else "live engine"
    for number, text, measure in (("C7", "RLD starts decoding at once and hides the transfer", _c7),
                                  ("C8", "TTFT is cut by 51.5%", _c8)):  # fmt: skip
        try:
            found = measure(data, arms, where)
        except NotTestable as reason:
            yield Row(id=number, claim=text, verdict="not testable here", where="–", note=str(reason))
            continue
        yield Row(id=number, claim=text, verdict=verdict(found.parts), where=where, parts=found.parts, note=found.note)


def _kinds(data: Dataset) -> dict[str, str]:
    """Kind -> arm name."""
    out: dict[str, str] = {}
    for name in data.arms:
        kind = data.arm_facts(name).get("emulated") or name
        if kind in ("baseline", "naive", "pdd"):
            out.setdefault(str(kind), name)
    return out


def _needs(arms: dict[str, str], *kinds: str) -> None:
    missing = [kind for kind in kinds if kind not in arms]
    if missing:
        raise NotTestable(f"the run has no arm {' or '.join(missing)}")


def _c7(data: Dataset, arms: dict[str, str], where: Where) -> Found:
    _needs(arms, "baseline", "naive", "pdd")
    parts = []
    for kind, name, claimed in (("pdd", "relay", (-0.01, 0.1)), ("naive", "no relay", (0.5, INF))):
        pair = data.pair(arms["baseline"], arms[kind])
        low = pair.subset((pair.a.rows["cached_tokens_planned"] < 0.9 * pair.a.rows["input_tokens_planned"]).to_numpy())
        parts += [part(f"{metric}, {name} - one datacentre, hits below 90%", claimed, low.by_request(column, 0.5))
                  for metric, column in (("TTFT", "ttft"), ("second token", "second_sched"))]  # fmt: skip
    return Found(where=where, parts=parts)


def _c8(data: Dataset, arms: dict[str, str], where: Where) -> Found:
    _needs(arms, "naive", "pdd")
    parts = [part(f"cut of TTFT {stat.upper()} against {kind}", (0.510, 0.520),
                  cut(data.arms[arms["pdd"]], data.arms[arms[kind]], "ttft", stat), alternative=True)
             for kind in ("naive", "baseline") if kind in arms for stat in ("p50", "p90", "p99")]  # fmt: skip
    return Found(where=where, parts=parts, note="the claim names no reference: it agrees if one of these is meant")
