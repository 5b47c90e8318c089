"""What `pddbench money` prints: the sensitivity of a BCR, even prices, equal cost, and the fluid balance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pddbench import exitcodes
from pddbench.analyze import sensitivity
from pddbench.analyze.capacity import Ratio
from pddbench.analyze.sensitivity import Grid
from pddbench.errors import InputError
from pddbench.report.hits import OverHits, over_hits
from pddbench.report.hits import lines as hit_lines
from pddbench.report.searched import deployment, read
from pddbench.runner.capacity import FILE, State

if TYPE_CHECKING:
    from pddbench.runner.capacity_hits import Hits

MONEY = "money.json"


class Money(msgspec.Struct, kw_only=True):
    """`money.json`: a grid over prices for every arm against the first, everything over the hit rate where it was
    measured, and the fluid bound where it was asked for. Schema: `money.schema.json` beside this file."""  # fmt: skip

    schema_version: int = 1
    measured: str
    prices: dict[str, float]
    line: float
    grids: list[Grid] = []
    over_hits: OverHits | None = None
    balance: list[sensitivity.Balance] = []


def json_schema() -> dict[str, Any]:
    """JSON Schema of `money.json`."""
    schema = msgspec.json.schema(Money)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pddbench money.json", **schema}


_HITS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
_RELAYS = (1, 2, 4, 8)
_BATCH = 16  # streams a decode instance runs with in the balance


def answer(
    folder: Path, prices: dict[str, float], line: float | None, *, tokens: tuple[int, int] | None, as_json: bool
) -> int:
    """Print how the BCRs of a capacity search depend on prices, write `money.json`; raises `InputError`.

    Prices and line that are not given are those of the experiment.
    """
    over = _over_hits(folder, prices, line)
    if over is not None and not (folder / FILE).is_file():
        answer = Money(measured=over.measured, prices=over.prices, line=over.line, over_hits=over)
        _show(answer, folder, hit_lines(over, _hits(folder).currency), as_json=as_json)
        return exitcodes.GOOD
    state = read(folder)
    _check_chips(prices, [one.roles for one in state.arms.values()], state.prices)
    prices = state.prices | prices
    line = state.line if line is None else line
    deployments = [deployment(name, state) for name in state.arms]
    known = [one for one in deployments if one.estimate.rate is not None and one.roles]
    if len(known) < 2:
        raise InputError(f"{folder}: fewer than two arms with roles and a capacity: nothing to compare")
    missing = {chip for one in known for chip in sensitivity.chips(one.roles)} - set(prices)
    if missing:
        raise InputError(f"no price for chip {', '.join(sorted(missing))}: give --price {sorted(missing)[0]}=2.0")
    first, *others = known
    grids = [sensitivity.grid(one, first, prices, line) for one in others]
    balance = _balance(tokens) if tokens is not None else []
    answer = Money(
        measured=state.measured, prices=prices, line=line, grids=grids, balance=balance, over_hits=over
    )  # fmt: skip
    texts = [*(text for one in grids for text in _lines(one, state)), *_balance_lines(balance)]
    _show(answer, folder, texts, as_json=as_json)
    return exitcodes.GOOD


def _show(answer: Money, folder: Path, texts: Iterable[str], *, as_json: bool) -> None:
    """Write `money.json`, print it or the lines."""
    data = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    place = folder if folder.is_dir() else folder.parent
    try:
        (place / MONEY).write_bytes(data + b"\n")
    except OSError as error:
        raise InputError(f"{place}: cannot be written to ({error.strerror})") from error
    if as_json:
        click.echo(data.decode())
        return
    for text in texts:
        click.echo(text)


def _hits(folder: Path) -> Hits:
    from pddbench.runner.capacity_hits import FILE as HITS
    from pddbench.runner.capacity_hits import Hits

    file = folder / HITS
    try:
        return msgspec.json.decode(file.read_bytes(), type=Hits)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{file}: not the file of `pddbench capacity --hits` ({error})") from None


def _over_hits(folder: Path, prices: dict[str, float], line: float | None) -> OverHits | None:
    """What `hits.json` says at these prices, where there is one."""
    from pddbench.runner.capacity_hits import FILE as HITS

    if not (folder / HITS).is_file():
        return None
    found = _hits(folder)
    _check_chips(prices, [row.roles for row in found.rows], found.prices)
    return over_hits(found, found.prices | prices, found.line if line is None else line)


def _check_chips(given: Mapping[str, float], roles: Iterable[sensitivity.Roles], priced: Mapping[str, float]) -> None:
    """Raise `InputError` for a price of a chip that the experiment neither uses nor prices."""
    there = sorted({chip for one in roles for chip in sensitivity.chips(one)} | set(priced))
    for chip in given:
        if chip not in there:
            raise InputError(f"--price {chip}: no such chip in the experiment; there are: {', '.join(there) or 'none'}")


def _ratio(found: Ratio) -> str:
    if found.point is None:
        return "–"
    ends = ["–" if end is None else f"{end:.3g}" for end in (found.low, found.high)]
    return f"{found.point:.3g} [{ends[0]}, {ends[1]}]"


def _lines(found: Grid, state: State) -> Iterator[str]:
    lines = sorted({cell.line for cell in found.cells})
    yield (
        f"BCR of {found.arm} / {found.against} ({state.measured}), by price of the second chip and of the line "
        "(first chip = 1)"
    )
    yield "second chip  " + "".join(f"{'line ' + format(line, 'g'):>22}" for line in lines)
    for price in sorted({cell.price_ratio for cell in found.cells}):
        row = {cell.line: cell.bcr_ratio for cell in found.cells if cell.price_ratio == price}
        yield f"{price:>11g}  " + "".join(f"{_ratio(row[line]):>22}" for line in lines)
    even = "at no price" if found.even_price_ratio is None else f"at {found.even_price_ratio:.3g} times the first"
    yield f"even {even} for the second chip (line as given)" + (
        "" if found.even_line is None else f", or at {found.even_line:.3g} first chips for the line (chips as given)"
    )
    yield (
        f"equal cost: {found.against} scaled to {found.arm}'s money would carry {_ratio(found.equal_cost_rate)} "
        "sessions/s "
        "(proportionally; whole chips: pddbench capacity --simulate --splits)"
    )


def _balance(tokens: tuple[int, int]) -> list[sensitivity.Balance]:
    """The published example (43 A + 32 B against 88 A) by the emulator's laws."""
    from pddbench.deploy.emulator.prefill import prefill_s
    from pddbench.deploy.presets import CHIPS

    chip, (length, output) = CHIPS["A"], tokens
    decode_s = output * (chip.decode_c0_s + chip.decode_c1_s * _BATCH) / _BATCH
    prefill = {hit: prefill_s(chip, max(1, round(length * (1 - hit))), round(length * hit)) for hit in _HITS}
    return sensitivity.balance(prefill, decode_s, 2.0, near=43, far=32, reference=88, relays=_RELAYS)


def _balance_lines(found: list[sensitivity.Balance]) -> Iterator[str]:
    if not found:
        return
    yield (
        "fluid bound (no queue, no tail, laws of the emulator) of 43 A + 32 B, B decoding twice as fast, against 88 A: "
        "requests/s, by hit and count of relays"
    )
    yield "      hit  " + "".join(f"{n:>4} RLD" for n in _RELAYS)
    for hit in _HITS:
        row = [one.throughput_ratio for one in found if one.hit == hit]
        yield f"{100 * hit:>8g}%  " + "".join(f"{value:>8.3f}" for value in row)


def prices_of(given: tuple[str, ...]) -> dict[str, float]:
    """`CHIP=PRICE` flags."""
    from pddbench.cli.common import key_value

    out: dict[str, float] = {}
    for text in given:
        name, value = key_value(text, "--price")
        try:
            price = float(value)
        except ValueError:
            price = -1.0
        if not 0 < price < 1e9:
            raise InputError(f"--price {name}: must be a number above 0")
        out[name] = price
    return out


def check_line(line: float | None) -> None:
    """Raise `InputError` unless a price of the line is one."""
    if line is not None and not 0 <= line < 1e9:
        raise InputError(f"--line {line:g}: must be a price an hour, 0 or more and finite")


__all__: list[Any] = ["answer", "check_line", "prices_of"]
