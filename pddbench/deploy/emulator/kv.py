"""Cluster A's side of KV transfers: what must cross, what is under way, and when a transfer may be stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pddbench.deploy.emulator import observe
from pddbench.deploy.emulator.blocks import Path, block_at, path_after
from pddbench.deploy.emulator.messages import Drop, Evict, Gone, HandOff, KvArrived, Message, Submit
from pddbench.deploy.emulator.placement import cache_of, cacheable
from pddbench.deploy.emulator.policy import kv_bytes
from pddbench.deploy.emulator.radix import Directory
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.streams import Stream
from pddbench.deploy.emulator.tokens import ID_BYTES, pack
from pddbench.wan.clock import Clock


class KvLink(Protocol):
    """What the cluster needs of the link that carries KV (`wan.fluid.FluidLink` is one)."""

    def send(self, flow_id: int, n_bytes: float, on_arrived: Callable[[], None]) -> None:
        """Start a transfer."""
        ...

    def cancel(self, flow_id: int) -> None:
        """Stop a transfer."""
        ...

    def sent_bytes(self, flow_id: int) -> float:
        """Bytes of a transfer sent by now; 0 when it has arrived or is unknown."""
        ...

    def predict_s(self, n_bytes: float) -> float:
        """Expected time of a transfer started now."""
        ...

    def remaining_s(self, flow_id: int) -> float:
        """Expected time until a transfer under way arrives."""
        ...


@dataclass(slots=True)
class Offer:
    """What a request's KV transfer would be: to which MD instance (-1: any), what is there, bytes and time."""

    instance: int
    have: int  # leading blocks that are there or on their way
    fresh_tokens: int
    n_bytes: int
    predicted_s: float


class Transfer:
    """KV of a request on its way (or about to be)."""

    __slots__ = ("arrived", "cached_tokens", "gone", "instance", "landed_bytes", "left", "mode", "n_bytes", "needs",
                 "number", "offer", "parts", "path", "pipeline", "request", "sent_bytes", "started_s",
                 "stream")  # fmt: skip

    def __init__(self, number: int, request: Submit, offer: Offer, mode: str, pipeline: str, stream: Stream) -> None:
        self.number, self.request, self.offer, self.mode, self.pipeline = number, request, offer, mode, pipeline
        self.stream = stream
        self.n_bytes = self.sent_bytes = offer.n_bytes
        self.instance, self.cached_tokens, self.started_s = offer.instance, 0, -1.0
        self.needs: list[int] = []
        self.path: Path = []
        self.left = 1  # flows that have not arrived
        self.landed_bytes = 0  # of flows that have
        self.parts = 0  # flows started, or not needed
        self.gone = self.arrived = False


class KvSender:
    """Sends KV over a link and keeps the directory of what MD has. Flow n is of transfer n, as is -n."""

    def __init__(
        self,
        spec: EmulatorSpec,
        clock: Clock,
        link: KvLink,
        to_b_kv: Callable[[Message], None],
        delay_s: float,
        observer: observe.Observer,
    ) -> None:
        self._spec, self._clock, self._link, self._to_b_kv, self._delay_s = spec, clock, link, to_b_kv, delay_s
        self._see = observer
        self._role = spec.roles["MD" if spec.arm == "pdd" else "D"]
        self._pooled = spec.md_placement == "pool"
        self._directories = [self._directory(number) for number in range(1 if self._pooled else self._role.count)]
        self._alive = list(range(len(self._directories)))
        self._numbers = 0
        self._transfers: dict[int, Transfer] = {}  # not known to have arrived
        self.sent_bytes = 0

    def _directory(self, number: int) -> Directory:
        on_evict = partial(self._evicted, -1 if self._pooled else number)
        return Directory(cache_of(self._role, self._spec.block_tokens, on_evict), self._spec.count_in_flight)

    def _evicted(self, instance: int, owner: int, stop: int) -> None:
        self._send_later(Evict(instance, owner, stop))

    @property
    def under_way(self) -> int:
        """Transfers that are not known to have arrived."""
        return len(self._transfers)

    def offer(self, request: Submit) -> Offer:
        """What a transfer of this prompt's KV would be now (all of it without DRC)."""
        path = cacheable(request, self._spec.block_tokens) if self._spec.drc else []
        index = max(
            self._alive, key=lambda n: (self._directories[n].peek(path), -self._directories[n].cache.blocks, -n)
        )
        directory = self._directories[index]
        have = directory.match(path, self._clock.now())
        fresh = request.prompt_tokens - have * self._spec.block_tokens
        n_bytes = kv_bytes(self._spec.model, fresh)
        waits = [self._remaining_s(other) for other in directory.carriers(path, have)]
        predicted_s = max([self._link.predict_s(n_bytes), *waits])
        return Offer(-1 if self._pooled else index, have, fresh, n_bytes, predicted_s)

    def _remaining_s(self, number: int) -> float:
        return max(self._link.remaining_s(number), self._link.remaining_s(-number))

    def reserve(
        self, request: Submit, offer: Offer, mode: str, pipeline: str, cached_tokens: int, stream: Stream
    ) -> Transfer:
        """Promise MD this prompt's blocks."""
        self._numbers += 1
        transfer = Transfer(self._numbers, request, offer, mode, pipeline, stream)
        transfer.cached_tokens = cached_tokens
        transfer.left = 2 if self._spec.kv_streaming else 1
        if self._spec.drc:
            directory = self._directories[max(0, offer.instance)]
            needs, transfer.path = directory.start(transfer.number, request.path, offer.have, self._clock.now())
            transfer.needs = sorted(needs)
        self._transfers[transfer.number] = transfer
        return transfer

    def start(self, transfer: Transfer, last_part: bool) -> None:
        """Begin to send. With `kv_streaming` all layers but the last leave first, the last one when prefill ends."""
        part, flow = transfer.n_bytes, transfer.number
        if last_part and not transfer.parts:
            transfer.left = transfer.parts = 1  # not streamed, or decided upon only now that prefill has ended
        else:
            early = transfer.n_bytes * (self._spec.model.layers - 1) // self._spec.model.layers
            part = transfer.n_bytes - early if last_part else early
            flow = -transfer.number if last_part else transfer.number
        if transfer.started_s < 0:
            transfer.started_s = self._clock.now()
            rid = transfer.request.rid
            self._see(
                "kv_start", rid, transfer.started_s, transfer.instance, transfer.offer.fresh_tokens, transfer.n_bytes
            )
        transfer.parts += 1
        self._link.send(flow, part, partial(self._flow_arrived, transfer, part))

    def _flow_arrived(self, transfer: Transfer, part: int) -> None:
        transfer.left -= 1
        transfer.landed_bytes += part
        if not transfer.left:
            self._arrived(transfer)

    def _arrived(self, transfer: Transfer) -> None:
        """The last byte is at B: tell B what it was (with no delay: it came with the bytes)."""
        request, stream, have = transfer.request, transfer.stream, transfer.offer.have
        self.sent_bytes += transfer.n_bytes
        transfer.arrived = True
        mode = "cache" if transfer.gone else transfer.mode
        ids = b""
        if mode == "decode" and stream.made:
            ids = bytes(ID_BYTES * stream.made) if stream.chain is None else pack(stream.chain.ids)
        self._to_b_kv(
            KvArrived(request.rid, transfer.number, mode, request.seed, request.max_tokens, request.prompt_tokens,
                      transfer.cached_tokens, transfer.pipeline, transfer.started_s, transfer.n_bytes, 0,
                      transfer.needs, block_at(request.path, have) if self._spec.drc else None,
                      self._kept(transfer), ids, transfer.instance)
        )  # fmt: skip

    def _kept(self, transfer: Transfer) -> Path:
        """The blocks that MD keeps: those that there was room for when they were promised."""
        if transfer.path or self._spec.count_in_flight:
            return transfer.path
        return path_after(transfer.request.path, transfer.offer.have)

    def landed(self, number: int) -> None:
        """MD says that a transfer and all that it stands on are there."""
        transfer = self._transfers.pop(number, None)
        if transfer is not None and self._spec.drc:
            self._directories[max(0, transfer.instance)].arrived(number)

    def leave(self, transfer: Transfer) -> None:
        """The client is gone: stop the KV, unless it has arrived (B must let go) or other requests rely on it."""
        transfer.gone = True
        if transfer.arrived:
            self._send_later(Drop(transfer.request.rid))
        else:
            self.cancel(transfer)

    def cancel(self, transfer: Transfer) -> bool:
        """Stop a transfer; False when it has arrived or others rely on it. What was sent stays sent."""
        if transfer.arrived or transfer.number not in self._transfers:
            return False
        if self._spec.drc and not self._directories[max(0, transfer.instance)].cancel(transfer.number):
            return False
        flows = (transfer.number, -transfer.number)
        transfer.sent_bytes = transfer.landed_bytes + round(sum(self._link.sent_bytes(flow) for flow in flows))
        self.sent_bytes += transfer.sent_bytes
        for flow in flows:
            self._link.cancel(flow)
        del self._transfers[transfer.number]
        self._send_later(Gone(transfer.number))
        return True

    def complete(self, transfer: Transfer) -> None:
        """Of a streamed transfer whose request is gone, but on which others rely: send the rest."""
        if self._spec.kv_streaming and transfer.number in self._transfers and transfer.parts == 1:
            self.start(transfer, last_part=True)

    def tail(self, message: HandOff) -> None:
        """Send KV of eager tokens (`direct_kv`), and behind it what it is."""
        self._numbers += 1
        message.transfer = self._numbers
        self.sent_bytes += message.kv_bytes
        self._link.send(message.transfer, message.kv_bytes, partial(self._to_b_kv, message))
        self._send_later(Gone(self._numbers))

    def drop(self, rid: int) -> None:
        """MD need not wait for a request."""
        self._send_later(Drop(rid))

    def change(self, count: int) -> None:
        """Instances of MD are lost (the last ones, with caches of their own) or added."""
        if self._pooled:
            return
        for _ in range(abs(count)):
            if count > 0:
                self._directories.append(self._directory(len(self._directories)))
                self._alive.append(len(self._directories) - 1)
            elif len(self._alive) > 1:
                self._alive.pop()

    def _send_later(self, message: Message) -> None:
        """Behind the KV, so that it cannot overtake it: one way of the link."""
        self._clock.call_at(self._clock.now() + self._delay_s, self._to_b_kv, message)
