"""Cluster A as a pure state machine: P, and D (baseline) or RLD (pdd); it sends KV and, at the hand-off, token ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from pddbench.deploy.emulator.blocks import BlockCache, Mirror
from pddbench.deploy.emulator.decode import Decoder, Step, Stream
from pddbench.deploy.emulator.messages import (
    Cancel,
    Drop,
    Finish,
    Gone,
    HandOff,
    KvArrived,
    Message,
    Ready,
    Submit,
    Tokens,
)
from pddbench.deploy.emulator.prefill import Prefill
from pddbench.deploy.emulator.spec import EmulatorSpec, Model
from pddbench.wan.clock import Clock


class KvLink(Protocol):
    """What the cluster needs of the link that carries KV (`wan.fluid.FluidLink` is one)."""

    def send(self, flow_id: int, n_bytes: float, on_arrived: Callable[[], None]) -> None:
        """Start a transfer."""
        ...

    def cancel(self, flow_id: int) -> None:
        """Stop a transfer."""
        ...

    def predict_s(self, n_bytes: float) -> float:
        """Expected time of a transfer started now."""
        ...

    def remaining_s(self, flow_id: int) -> float:
        """Expected time until a transfer under way arrives."""
        ...


def kv_bytes(model: Model, tokens: int) -> int:
    """KV bytes of `tokens` tokens."""
    return round(model.kv_base_bytes + model.kv_token_bytes * tokens)


class Job:
    """A request in cluster A."""

    __slots__ = ("decoding", "gone", "hit_tokens", "kv_bytes", "pipeline", "request", "started_s", "stream", "transfer")

    def __init__(self, request: Submit) -> None:
        self.request = request
        self.stream = Stream(request.rid, request.seed, request.max_tokens)
        self.hit_tokens = 0
        self.pipeline = ""
        self.transfer = 0  # number of its KV transfer; 0: none yet
        self.kv_bytes = 0
        self.started_s = 0.0
        self.decoding = True  # tokens are (to be) produced here
        self.gone = False  # finished here, or its client left


class ClusterA:
    """Takes `Submit` and `Cancel` from the router and `Ready` from B; answers by calling the senders it is given.

    `to_b_kv` is the connection behind the KV itself, `to_b` the control channel; both ends' one-way delay on control
    messages is added here for the `model` backend (`control_delay_s`), and by the network with real packets (0).
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        clock: Clock,
        link: KvLink | None,
        to_router: Callable[[Message], None],
        to_b: Callable[[Message], None],
        to_b_kv: Callable[[Message], None],
        control_delay_s: float,
    ) -> None:
        self._spec, self._clock, self._link, self._delay_s = spec, clock, link, control_delay_s
        self._to_router, self._to_b, self._to_b_kv = to_router, to_b, to_b_kv
        self._cache, self._mirror = BlockCache(), Mirror()
        self._jobs: dict[int, Job] = {}
        self._jobs_of_transfer: dict[int, Job] = {}
        self._transfers = 0
        self._fabric_bytes_s = spec.fabric_gbit * 1e9 / 8
        self.kv_sent_bytes = self.handoff_bytes = 0
        prefill = spec.roles["P"]
        self._prefill = Prefill(clock, prefill.chip, prefill.count)
        self._stage = {"baseline": "d", "pdd": "rld", "naive": ""}[spec.arm]
        relay = spec.roles.get("D" if spec.arm == "baseline" else "RLD")
        self.decoder = Decoder(clock, relay.chip, relay.count, self._on_step) if relay and self._stage else None

    def on_message(self, message: Message) -> None:
        """A message from the router or from B."""
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Cancel):
            self._cancel(message.rid)
        elif isinstance(message, Ready):
            self._ready(message)

    def _submit(self, request: Submit) -> None:
        job = self._jobs[request.rid] = Job(request)
        self._prefill.submit(request.rid, partial(self._measure, job), partial(self._prefilled, job))

    def _cacheable(self, request: Submit) -> list[int]:
        """Blocks that may hit: the last token is always computed."""
        return request.hashes[: (request.prompt_tokens - 1) // self._spec.block_tokens]

    def _measure(self, job: Job) -> tuple[int, int]:
        """(fresh, cached) tokens of a prompt whose prefill starts now."""
        job.hit_tokens = self._cache.match(self._cacheable(job.request)) * self._spec.block_tokens
        return job.request.prompt_tokens - job.hit_tokens, job.hit_tokens

    def _prefilled(self, job: Job) -> None:
        self._cache.insert(job.request.hashes)
        if job.gone:
            return
        have = self._present_at_b(job)
        job.kv_bytes = kv_bytes(self._spec.model, job.request.prompt_tokens - have * self._spec.block_tokens)
        job.pipeline = self._choose(job, have)
        if job.pipeline == "P-MD":
            self._first_token(job)
        else:
            fresh = kv_bytes(self._spec.model, job.request.prompt_tokens - job.hit_tokens)
            self._clock.call_at(self._clock.now() + fresh / self._fabric_bytes_s, self._start_decode, job)
        if job.pipeline != "P-D" and not job.gone:
            self._send_kv(job, have)

    def _present_at_b(self, job: Job) -> int:
        """Leading blocks of a prompt that B has or is about to get (none without DRC)."""
        if not self._spec.drc or self._spec.arm == "baseline":
            return 0
        return self._mirror.match(self._cacheable(job.request))

    def _choose(self, job: Job, have: int) -> str:
        """The pipeline: in pdd, RLD is used when KV is predicted to be at MD later than `threshold_s` from now."""
        if self._spec.arm != "pdd" or self._link is None:
            return "P-D" if self._spec.arm == "baseline" else "P-MD"
        waits = [self._link.remaining_s(other) for other in self._mirror.carriers(job.request.hashes[:have])]
        predicted_s = max([self._link.predict_s(job.kv_bytes), *waits])
        return "P-MD" if predicted_s <= self._spec.threshold_s else "P-RLD-MD"

    def _first_token(self, job: Job) -> None:
        """The variant of naive in which P sends the first token itself."""
        job.decoding = False
        if self._spec.arm == "naive" and self._spec.first_token_from_p:
            self._to_router(Tokens("p", [(job.request.rid, 0, job.stream.chain.next())]))
            if job.stream.done:
                self._finish(job)

    def _send_kv(self, job: Job, have: int) -> None:
        assert self._link is not None
        self._transfers += 1
        job.transfer, job.started_s = self._transfers, self._clock.now()
        self._jobs_of_transfer[job.transfer] = job
        needs = self._mirror.start(job.transfer, job.request.hashes, have)
        self._link.send(job.transfer, job.kv_bytes, partial(self._kv_arrived, job, have, sorted(needs)))

    def _kv_arrived(self, job: Job, have: int, needs: list[int]) -> None:
        """The last byte of a transfer is at B: tell B what it was (with no delay: it came with the bytes)."""
        request = job.request
        self.kv_sent_bytes += job.kv_bytes
        mode = "cache" if job.gone else "hold" if job.pipeline == "P-RLD-MD" else "decode"
        base = request.hashes[have - 1] if have else None
        self._to_b_kv(
            KvArrived(request.rid, job.transfer, mode, request.seed, request.max_tokens, job.hit_tokens, job.pipeline,
                      job.started_s, job.kv_bytes, 0, needs, base, request.hashes[have:],
                      job.stream.chain.ids if mode == "decode" else [])
        )  # fmt: skip

    def _start_decode(self, job: Job) -> None:
        if job.decoding and not job.gone and self.decoder is not None:
            self.decoder.add(job.stream)

    def _on_step(self, step: Step) -> None:
        self._to_router(Tokens(self._stage, [(stream.rid, index, token) for stream, index, token in step]))
        for stream, _, _ in step:
            if stream.done:
                self._finish(self._jobs[stream.rid])

    def _finish(self, job: Job) -> None:
        """The answer ended here. KV still under way stays useful to the session's next turn and is not stopped."""
        job.gone = True
        del self._jobs[job.request.rid]
        eager = job.request.max_tokens if job.pipeline == "P-RLD-MD" else 0
        kv = None if job.pipeline == "P-D" else {"bytes": job.kv_bytes, "wire_bytes": None, "ns": None}
        self._to_router(Finish(job.request.rid, job.hit_tokens, job.pipeline, eager, None, kv))

    def _ready(self, message: Ready) -> None:
        """B has the KV: take the stream out at the step boundary and hand its ids over."""
        self._mirror.arrived(message.transfer)
        job = self._jobs_of_transfer.pop(message.transfer, None)
        if job is None or job.gone:
            self._send_later(self._to_b_kv, Drop(message.rid))
            return
        if job.pipeline == "P-MD":
            del self._jobs[message.rid]
            return
        assert self.decoder is not None
        if not self.decoder.take(message.rid, partial(self._hand_over, job)):
            self._hand_over(job, job.stream)  # still on the fabric: RLD has made nothing yet

    def _hand_over(self, job: Job, stream: Stream) -> None:
        job.decoding = False
        if stream.done:
            self._send_later(self._to_b_kv, Drop(stream.rid))
            return
        del self._jobs[stream.rid]
        self._send_later(self._to_b, HandOff(stream.rid, stream.chain.ids))

    def _send_later(self, send: Callable[[Message], None], message: Message) -> None:
        """A control message: one way of the link."""
        self._clock.call_at(self._clock.now() + self._delay_s, send, message)

    def _cancel(self, rid: int) -> None:
        """The client is gone: stop what only it needed."""
        job = self._jobs.pop(rid, None)
        if job is None:
            if self._spec.arm != "baseline":
                self._send_later(self._to_b_kv, Drop(rid))
            return
        job.gone = True
        self._prefill.drop(rid)
        if self.decoder is not None:
            self.decoder.discard(rid)
        if job.transfer:
            self._cancel_transfer(job)

    def _cancel_transfer(self, job: Job) -> None:
        """Stop its KV, unless it has arrived (B must let go of the request) or other requests rely on it."""
        assert self._link is not None
        if self._link.remaining_s(job.transfer) <= 0:
            self._send_later(self._to_b_kv, Drop(job.request.rid))
        elif self._mirror.cancel(job.transfer):
            self._link.cancel(job.transfer)
            del self._jobs_of_transfer[job.transfer]
            self._send_later(self._to_b_kv, Gone(job.transfer))
