"""Claims from finished live runs: the same measures as in virtual time, on sockets.

A run is measured for every claim whose arms it has, by the names of `workloads/claims/live`. C8 also takes a run whose
arms are told apart by kind (`baseline`, `naive`, `pdd`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pddbench.analyze import trust
from pddbench.analyze.dataset import Dataset
from pddbench.claims.figures import cut
from pddbench.claims.mechanisms import MECHANISMS, size_of
from pddbench.claims.model import Found, NotTestable, Row, Where, part
from pddbench.claims.table import row_of
from pddbench.errors import InputError

NOT_LIVE = {
    "C14": "needs 90 minutes of agents' traffic on each of several deployments: in virtual time only",
    "C15": "cold prompts of 128K to 256K, 3.5% of the requests: hours on 2 cores for enough of them",
    "C19": "dips of 1 to 2% are within what two shared cores add; `pddbench bathtub` measures a real engine",
    "C20": "a law of prefill, which an emulator gives back; `pddbench bathtub` measures a real engine",
}


def open_live(folders: Sequence[Path], wanted: Sequence[str]) -> list[Dataset]:
    """The finished live runs; `InputError` for a folder that is none, was simulated or is not valid.

    Also when none of them shows any of the `wanted` claims.
    """
    from pddbench.runfolder.load import load

    out = []
    for folder in folders:
        data = Dataset(load(folder))
        if data.run.manifest.get("simulated"):
            raise InputError(f"--live {folder}: a simulated run; give one of `pddbench run`")
        if why := _invalid(data):
            raise InputError(f"--live {folder}: {why}, so it shows nothing; run it again")
        if not _measured_by(data):
            raise InputError(
                f"--live {folder}: no claim can be measured from arms {', '.join(data.run.arms)}; "
                "see workloads/claims/live for their names"
            )
        out.append(data)
    shown = set().union(*map(_measured_by, out))
    if not shown & set(wanted):
        raise InputError(f"--live: these runs show {', '.join(sorted(shown, key=_number))}, not {', '.join(wanted)}")
    return out


def _number(claim: str) -> int:
    return int(claim[1:])


def _invalid(data: Dataset) -> str | None:
    """Why a run is not valid: it was stopped, or a rule of trust is broken that was not allowed."""
    if data.run.manifest.get("partial"):
        return "it was stopped before its end"
    broken = [found.rule for found in trust.findings(data, data.run.manifest.get("allow") or ())
              if found.level == "invalid"]  # fmt: skip
    return f"it is invalid ({', '.join(dict.fromkeys(broken))})" if broken else None


def measure_live(runs: Sequence[Dataset], texts: dict[str, str]) -> Iterator[Row]:
    """A row for each claim that a run can show, in the order of the claims; `texts`: their words by number."""
    for number in texts:
        for data in runs:
            if number in _measured_by(data):
                yield _row(number, texts[number], data)
                break


def _measured_by(data: Dataset) -> set[str]:
    found = {one.id for one in MECHANISMS.values() if one.live and set(one.arms) <= set(data.run.arms)}
    return found | ({"C8"} if {"naive", "pdd"} <= set(_kinds(data)) else set())


def _row(number: str, text: str, data: Dataset) -> Row:
    where: Where = "emulated" if all(data.arm_facts(arm).get("emulated") for arm in data.run.arms) else "live engine"
    try:
        found = _c8(data) if number == "C8" else MECHANISMS[number].measure(data, None)
    except NotTestable as reason:
        return Row(id=number, claim=text, verdict="not testable here", where="–", note=str(reason))
    found.where, found.size = where, size_of(data)
    return row_of(number, text, found)


def _kinds(data: Dataset) -> dict[str, str]:
    """Kind -> arm name."""
    out: dict[str, str] = {}
    for name in data.run.arms:
        kind = name if name in ("baseline", "naive", "pdd") else data.arm_facts(name).get("emulated")
        if kind in ("baseline", "naive", "pdd"):
            out.setdefault(str(kind), name)
    return out


def _c8(data: Dataset) -> Found:
    arms = _kinds(data)
    parts = [part(f"cut of TTFT {stat.upper()} against {kind}", (0.510, 0.520),
                  cut(data.arms[arms["pdd"]], data.arms[arms[kind]], "ttft", stat), alternative=True)
             for kind in ("naive", "baseline") if kind in arms for stat in ("p50", "p90", "p99")]  # fmt: skip
    return Found(
        where="emulated", parts=parts, note="the claim names no reference: it agrees if one of these is meant; a fixed "
        "90% hit, not the mix of C4",
    )  # fmt: skip
