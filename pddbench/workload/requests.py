"""The requests of a plan as columns: a million of them in some 110 MB, and read from a file without unpacking it.

A `PlannedRequest` is made when somebody asks for one. Columns are `array`s while a plan is made, and views of the
mapped file where it is read back, so that several processes share one copy.
"""

from __future__ import annotations

import hashlib
import mmap
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

NO_START = -(2**63)
"""What stands in the column `start_ns` for None."""
_INTS: dict[str, Literal["i", "q"]] = {
    **dict.fromkeys(("turn", "session", "kind", "phase"), "i"),
    **dict.fromkeys(("start_ns", "gap_ns", "parent_ends"), "q"),
    **dict.fromkeys(("parents", "prefix_of", "prefix_tokens", "input_tokens", "output_tokens"), "i"),
    "cached_tokens_planned": "i",
}
_PLAIN = ("turn", "gap_ns", "prefix_of", "prefix_tokens", "input_tokens", "output_tokens", "cached_tokens_planned")
_plain_of = attrgetter(*_PLAIN)
_TEXTS = ("request_id", "session_id")
_ALIGN = 8
_MAGIC = b"pddbench-plan-2\n"
_SHA256_BYTES = 32
_AT_ONCE = 65_536


class PlannedRequest(msgspec.Struct, frozen=True):
    """One request to send. Times are nanoseconds of experiment time from t0; indices point into `Plan.requests`.

    `start_ns` is the scheduled start of a root (of every request with `timing = "trace"`), `gap_ns` the wait after
    the last parent's end. `cached_tokens_planned` is the hit of an infinite prefix cache on the `prompt` basis (live
    history: `prompt+output`), capped at `input_tokens - 1`, not yet floored to any engine's block.
    """

    index: int
    request_id: str
    session_id: str
    turn: int
    kind: str
    phase: str  # warmup | measure
    parents: tuple[int, ...]
    start_ns: int | None
    gap_ns: int
    prefix_of: int  # -1: none
    prefix_tokens: int
    input_tokens: int
    output_tokens: int
    cached_tokens_planned: int
    plan_sha256: str


class _Texts:
    """Strings, one behind the other, and where each ends."""

    def __init__(self, data: Any = None, ends: Any = None) -> None:
        self.data: Any = bytearray() if data is None else data
        self.ends: Any = array("q") if ends is None else ends

    def append(self, text: str) -> None:
        self.data += text.encode("utf-8", "surrogatepass")
        self.ends.append(len(self.data))

    def __getitem__(self, i: int) -> str:
        return bytes(self.data[self.ends[i - 1] if i else 0 : self.ends[i]]).decode("utf-8", "surrogatepass")


class _Digests:
    """SHA-256 sums in 32 bytes each, given and read as 64 hexadecimal digits; `odd`: texts that are something else."""

    def __init__(self, data: Any = None, odd: dict[int, str] | None = None) -> None:
        self.data: Any = bytearray() if data is None else data
        self.odd = {} if odd is None else odd

    def append(self, text: str) -> None:
        try:
            packed = bytes.fromhex(text)
        except ValueError:
            packed = b""
        if packed.hex() != text or len(packed) != _SHA256_BYTES:
            self.odd[len(self.data) // _SHA256_BYTES] = text
            packed = bytes(_SHA256_BYTES)
        self.data += packed

    def __getitem__(self, i: int) -> str:
        if i in self.odd:
            return self.odd[i]
        return bytes(self.data[_SHA256_BYTES * i : _SHA256_BYTES * (i + 1)]).hex()

    def sha256(self) -> str:
        """Of all texts, one behind the other."""
        whole, n = hashlib.sha256(), len(self.data) // _SHA256_BYTES
        for first in range(0, n, _AT_ONCE):
            last = min(first + _AT_ONCE, n)
            if self.odd:
                whole.update("".join(self[i] for i in range(first, last)).encode("utf-8", "surrogatepass"))
            else:
                whole.update(bytes(self.data[_SHA256_BYTES * first : _SHA256_BYTES * last]).hex().encode())
        return whole.hexdigest()


class Requests(Sequence[PlannedRequest]):
    """Planned requests in the order of their index. Grows by `append` until it is `sealed`."""

    def __init__(self, requests: Iterable[PlannedRequest] = ()) -> None:
        self._ints: dict[str, Any] = {name: array(code) for name, code in _INTS.items()}
        self._plain = [self._ints[name] for name in _PLAIN]
        self._texts = {name: _Texts() for name in _TEXTS}
        self._digests = _Digests()
        self._words: list[str] = []  # of kinds and phases
        self._codes: dict[str, int] = {}  # of sessions
        self._grows, self._is_sealed = True, False
        for request in requests:
            self.append(request)

    @classmethod
    def of_columns(
        cls,
        ints: Mapping[str, npt.NDArray[Any]],
        texts: Mapping[str, tuple[bytearray, npt.NDArray[np.int64]]],
        digests: bytearray,
        words: list[str],
    ) -> Requests:
        """Requests that can still grow, from their columns.

        `ints`: those of `_INTS`; texts: UTF-8 and where each ends; `digests`: 32 bytes a request; `words`: of the codes
        in `kind` and `phase`. Nothing of it may be used elsewhere.
        """
        out = cls()
        out._ints = {name: ints[name].astype(code, copy=False).data for name, code in _INTS.items()}
        out._texts = {name: _Texts(data, ends.astype("q", copy=False).data) for name, (data, ends) in texts.items()}
        out._digests, out._words = _Digests(digests), words
        out._grows = False
        return out

    def _grow(self) -> None:
        """Columns that can be appended to, of views that cannot."""
        self._ints = {name: array(code, self._ints[name].tobytes()) for name, code in _INTS.items()}
        self._plain = [self._ints[name] for name in _PLAIN]
        for texts in self._texts.values():
            texts.ends = array("q", texts.ends.tobytes())
        sessions = self._texts["session_id"]
        self._codes = {sessions[i]: i for i in range(len(sessions.ends))}
        self._grows = True

    def append(self, request: PlannedRequest) -> None:
        """Take one more; its index must be the next one."""
        assert not self._is_sealed and request.index == len(self)
        if not self._grows:
            self._grow()
        code = self._codes.get(request.session_id)
        if code is None:
            code = self._codes[request.session_id] = len(self._codes)
            self._texts["session_id"].append(request.session_id)
        ints, parents = self._ints, self._ints["parents"]
        for column, value in zip(self._plain, _plain_of(request), strict=True):
            column.append(value)
        ints["session"].append(code)
        ints["kind"].append(self._word(request.kind))
        ints["phase"].append(self._word(request.phase))
        ints["start_ns"].append(NO_START if request.start_ns is None else request.start_ns)
        parents.extend(request.parents)
        ints["parent_ends"].append(len(parents))
        self._texts["request_id"].append(request.request_id)
        self._digests.append(request.plan_sha256)

    def _word(self, word: str) -> int:
        try:
            return self._words.index(word)
        except ValueError:
            self._words.append(word)
            return len(self._words) - 1

    def sealed(self) -> Requests:
        """Itself; no more can be appended."""
        self._codes, self._is_sealed = {}, True
        return self

    def __len__(self) -> int:
        return len(self._ints["turn"])

    @overload
    def __getitem__(self, at: int) -> PlannedRequest: ...
    @overload
    def __getitem__(self, at: slice) -> list[PlannedRequest]: ...
    def __getitem__(self, at: int | slice) -> PlannedRequest | list[PlannedRequest]:
        if isinstance(at, slice):
            return [self._one(i) for i in range(*at.indices(len(self)))]
        i = at + len(self) if at < 0 else at
        if not 0 <= i < len(self):
            raise IndexError(at)
        return self._one(i)

    def _one(self, i: int) -> PlannedRequest:
        ints, texts = self._ints, self._texts
        plain = {name: ints[name][i] for name in _PLAIN}
        return PlannedRequest(
            index=i,
            request_id=texts["request_id"][i],
            session_id=texts["session_id"][ints["session"][i]],
            kind=self._words[ints["kind"][i]],
            phase=self._words[ints["phase"][i]],
            parents=tuple(self.parents(i)),
            start_ns=self.start_ns(i),
            plan_sha256=self._digests[i],
            **plain,
        )

    def __iter__(self) -> Iterator[PlannedRequest]:
        return map(self._one, range(len(self)))

    def sha256(self) -> str:
        """Of all `plan_sha256`, one after the other: the identity of the plan."""
        return self._digests.sha256()

    # --- columns

    def change(self, name: str, values: npt.NDArray[np.int64]) -> None:
        """Put other numbers into a column; `kind` and `phase` by `word_code`."""
        assert not self._is_sealed
        if self._grows:
            self._ints[name][:] = array(_INTS[name], values.astype(_INTS[name]).tobytes())
        else:
            self._ints[name] = values.astype(_INTS[name]).data

    def word_code(self, word: str) -> int:
        """The number that stands for a kind or a phase."""
        return self._word(word)

    def request_id(self, i: int) -> str:
        """`request_id` of request `i`."""
        return self._texts["request_id"][i]

    def start_ns(self, i: int) -> int | None:
        """`start_ns` of request `i`."""
        start: int = self._ints["start_ns"][i]
        return None if start == NO_START else start

    def gap_ns(self, i: int) -> int:
        """`gap_ns` of request `i`."""
        gap: int = self._ints["gap_ns"][i]
        return gap

    def parents(self, i: int) -> Sequence[int]:
        """`parents` of request `i`."""
        ends = self._ints["parent_ends"]
        found: Sequence[int] = self._ints["parents"][ends[i - 1] if i else 0 : ends[i]]
        return found

    def ints(self, name: str) -> npt.NDArray[np.int64]:
        """A column as int64, shape (n,); `session` are codes, and `start_ns` has the least of all numbers for None."""
        import numpy as np

        return np.frombuffer(self._ints[name], dtype=_INTS[name]).astype(np.int64)

    def strings(self, name: str) -> pa.Array:
        """A column of texts, shape (n,); `session_id` by code (see `ints`)."""
        import pyarrow as pa

        if name == "plan_sha256":
            return pa.array([self._digests[i] for i in range(len(self))], pa.string())
        texts = self._texts[name]
        return pa.array([texts[i] for i in range(len(texts.ends))], pa.string())

    def words(self, name: str) -> pa.Array:
        """`kind` or `phase` as strings, shape (n,)."""
        import pyarrow as pa

        return pa.array(self._words, pa.string()).take(pa.array(self.ints(name)))

    def is_one_of(self, column: str, words: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Where `kind` or `phase` is one of `words`, shape (n,)."""
        import numpy as np

        return np.isin(self.ints(column), [self._words.index(word) for word in words if word in self._words])

    def edges(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Every (parent, child), by child."""
        import numpy as np

        counts = np.diff(self.ints("parent_ends"), prepend=0)
        return self.ints("parents"), np.repeat(np.arange(len(self)), counts)

    # --- files

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write a file: a header of JSON with `about`, then the columns."""
        columns: dict[str, memoryview] = {name: memoryview(column).cast("B") for name, column in self._ints.items()}
        for name, texts in self._texts.items():
            columns[f"{name}.ends"] = memoryview(texts.ends).cast("B")
            columns[name] = memoryview(texts.data).cast("B")
        columns["plan_sha256"] = memoryview(self._digests.data).cast("B")
        sizes = {name: len(data) for name, data in columns.items()}
        header = msgspec.json.encode(
            {"about": about, "words": self._words, "odd_sha256": list(self._digests.odd.items()), "bytes": sizes}
        )
        with path.open("wb") as file:
            file.write(_MAGIC + len(header).to_bytes(_ALIGN, "little"))
            for data in (memoryview(header), *columns.values()):
                file.write(data)
                file.write(bytes(-len(data) % _ALIGN))

    @classmethod
    def load(cls, path: Path) -> tuple[Requests, dict[str, Any]]:
        """The requests of a file, mapped, and its `about`. Raises `OSError`, or `ValueError` where it is damaged."""
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        at = len(_MAGIC) + _ALIGN
        if bytes(whole[: len(_MAGIC)]) != _MAGIC:
            raise ValueError("it is no plan of this version")
        size = int.from_bytes(whole[len(_MAGIC) : at], "little")
        header = msgspec.json.decode(whole[at : at + size])
        at += size + -size % _ALIGN
        columns = {}
        for name, n_bytes in header["bytes"].items():
            columns[name] = whole[at : at + n_bytes]
            if len(columns[name]) != n_bytes:
                raise ValueError("it is cut off")
            at += n_bytes + -n_bytes % _ALIGN
        out = cls()
        out._ints = {name: columns[name].cast(code) for name, code in _INTS.items()}
        out._texts = {name: _Texts(columns[name], columns[f"{name}.ends"].cast("q")) for name in _TEXTS}
        out._digests = _Digests(columns["plan_sha256"], dict(header["odd_sha256"]))
        out._words = header["words"]
        return out.sealed(), header["about"]


def as_columns(requests: Sequence[PlannedRequest]) -> Requests:
    """Themselves, or columns made of a list."""
    return requests if isinstance(requests, Requests) else Requests(requests).sealed()
