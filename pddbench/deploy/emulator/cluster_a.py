"""Cluster A as a pure state machine: P, and D (baseline) or RLD (pdd); it sends KV and, at the hand-off, token ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pddbench.deploy.emulator import observe
from pddbench.deploy.emulator.decode import Decoder
from pddbench.deploy.emulator.handoff import HandOffs
from pddbench.deploy.emulator.kv import KvLink, KvSender, Transfer
from pddbench.deploy.emulator.messages import (
    Cancel,
    Change,
    Drop,
    Extended,
    Failed,
    Finish,
    Message,
    Ready,
    Submit,
    Tokens,
    Took,
)
from pddbench.deploy.emulator.placement import Prompts
from pddbench.deploy.emulator.policy import Facts, choose, kv_bytes
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.streams import Step, Stream, Stretch
from pddbench.wan.clock import Clock

NO_ROOM = "prompt and answer need {need} tokens of KV, more than an instance of {role} has ({have})"
NOBODY = "no instance of {role} is left"


class Job:
    """A request in cluster A."""

    __slots__ = ("adrift", "begun", "decoding", "gone", "hit_tokens", "pipeline", "ready", "request", "stream",
                 "transfer")  # fmt: skip

    def __init__(self, request: Submit, by_token: bool) -> None:
        self.request = request
        self.stream = Stream(
            request.rid, request.seed, request.max_tokens, context_tokens=request.prompt_tokens, by_token=by_token
        )
        self.hit_tokens = 0
        self.pipeline = ""
        self.transfer: Transfer | None = None  # of its KV
        self.begun = False  # its prefill has begun
        self.ready = False  # its KV is at MD
        self.adrift = False  # no decoder has it: it waits for its KV at MD
        self.decoding = True  # tokens are (to be) produced here
        self.gone = False  # finished here, or its client left


class ClusterA:
    """Takes `Submit` and `Cancel` from the router and answers from B; speaks through the senders it is given.

    `to_b_kv` is the connection behind the KV itself, `to_b` the control channel; both ends' one-way delay on control
    messages is added here for the `model` backend (`control_delay_s`), and by the network with real packets (0).
    `on_stretch`: tokens are counted instead of made (virtual time). `observer` sees what each role does.
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
        on_stretch: Callable[[str, Stretch], None] | None = None,
        observer: observe.Observer = observe.ignore,
    ) -> None:
        self._spec, self._clock, self._delay_s = spec, clock, control_delay_s
        self._to_router, self._to_b_kv, self._see = to_router, to_b_kv, observer
        self._by_token = on_stretch is None
        self._jobs: dict[int, Job] = {}
        self._fabric_bytes_s = spec.fabric_gbit * 1e9 / 8
        self._md_count = spec.roles[md].count if (md := _md_role(spec)) else 0
        self.prompts = Prompts(spec, clock)
        self.stage = {"baseline": "d", "pdd": "rld", "naive": ""}[spec.arm]
        self._relay_name = "D" if spec.arm == "baseline" else "RLD"
        relay = spec.roles.get(self._relay_name) if self.stage else None
        stretched = None if on_stretch is None else partial(on_stretch, self.stage)
        self.decoder: Decoder | None = None
        if relay is not None:
            self.decoder = Decoder(clock, relay, self._on_step, self._on_done, stretched, spec.tokens_per_step)
        self.kv: KvSender | None = None
        if link is not None:
            self.kv = KvSender(spec, clock, link, to_b_kv, control_delay_s, observer)
        self.handoffs: HandOffs | None = None
        if self.decoder is not None and self.kv is not None:
            self._to_b, self._ids_sent = to_b, 0
            self.handoffs = HandOffs(spec, clock, self.decoder, self.kv, self._send_ids, self._given_up, observer)
        for change in spec.changes:
            clock.call_at(change.at_s, self._change, change.role, change.count)

    def on_message(self, message: Message) -> None:
        """A message from the router or from B."""
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Cancel):
            self._cancel(message.rid)
        elif isinstance(message, Ready):
            self._ready(message)
        elif isinstance(message, Took) and self.handoffs is not None:
            self.handoffs.took(message.rid)
        elif isinstance(message, Extended) and self.handoffs is not None:
            self.handoffs.extended(message.rid)
        elif isinstance(message, Change):
            self._change(message.role, message.count)

    @property
    def kv_sent_bytes(self) -> int:
        """KV bytes that have arrived at B."""
        return self.kv.sent_bytes if self.kv is not None else 0

    def _submit(self, request: Submit) -> None:
        job = self._jobs[request.rid] = Job(request, self._by_token)
        reason = self._refusal(request)
        if reason:
            self._fail(job, reason)
            return
        self._see("queued", request.rid, self._clock.now(), -1, request.prompt_tokens, 0)
        self._queue(job)

    def _queue(self, job: Job) -> None:
        job.begun = False
        self.prompts.submit(job.request, partial(self._begin, job), partial(self._prefilled, job))

    def _refusal(self, request: Submit) -> str:
        """Why a request can never be served; "" when it can."""
        if not self.prompts.there:
            return NOBODY.format(role="P")
        need = request.prompt_tokens + request.max_tokens
        for name, role in self._spec.roles.items():
            if name != "P" and role.kv_tokens is not None and need > role.kv_tokens:
                return NO_ROOM.format(need=need, role=name, have=role.kv_tokens)
        return ""

    def _begin(self, job: Job, hit_tokens: int, number: int) -> None:
        """Prefill of a prompt begins; with `kv_streaming`, so does its transfer."""
        job.hit_tokens, job.begun = hit_tokens, True
        unhit = job.request.prompt_tokens - hit_tokens
        self._see("prefill", job.request.rid, self._clock.now(), number, unhit, 0)
        if self._spec.kv_streaming and not job.gone and self.kv is not None and not job.pipeline:
            self._decide(job)
            if job.transfer is not None:
                self.kv.start(job.transfer, last_part=False)

    def _prefilled(self, job: Job, number: int) -> None:
        if job.gone:
            if job.transfer is not None and self.kv is not None:
                self.kv.complete(job.transfer)
            return
        self._see("prefilled", job.request.rid, self._clock.now(), number, 0, 0)
        if not job.pipeline:
            self._decide(job)
        if not job.pipeline:
            self._fail(job, NOBODY.format(role="MD" if self._spec.arm == "pdd" else "D"))
            return
        if job.pipeline == "P-MD":
            self._first_token(job)
        else:
            self._clock.call_at(self._clock.now() + self._fabric_s(job), self._start_decode, job)
        if job.transfer is not None and self.kv is not None and not job.gone:
            self.kv.start(job.transfer, last_part=True)

    def _fabric_s(self, job: Job) -> float:
        """Seconds that KV takes to the decoder beside P: what that does not have in P's own cache."""
        hit = job.hit_tokens if self._spec.rld_cache else 0
        return kv_bytes(self._spec.model, job.request.prompt_tokens - hit) / self._fabric_bytes_s

    def _decide(self, job: Job) -> None:
        """Choose the pipeline, and what crosses the link."""
        request = job.request
        offer = None if self.kv is None else self.kv.offer(request)
        facts = Facts(
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            unhit_p=request.prompt_tokens - job.hit_tokens,
            unhit_md=request.prompt_tokens if offer is None else offer.fresh_tokens,
            predicted_s=0.0 if offer is None else offer.predicted_s,
            rld=self.decoder is not None and self.decoder.there,
            md=self._md_count > 0,
        )
        job.pipeline = choose(self._spec, facts)
        if offer is not None and self.kv is not None and job.pipeline in ("P-MD", "P-RLD-MD"):
            mode = "hold" if job.pipeline == "P-RLD-MD" else "decode"
            job.transfer = self.kv.reserve(request, offer, mode, job.pipeline, job.hit_tokens, job.stream)

    def _first_token(self, job: Job) -> None:
        """The variant of naive in which P sends the first token itself."""
        job.decoding = False
        if self._spec.arm == "naive" and self._spec.first_token_from_p:
            token = job.stream.chain.next() if job.stream.chain is not None else 0
            self._to_router(Tokens("p", [(job.request.rid, 0, token)]))
            job.stream.made = 1
            if job.stream.done:
                self._finish(job)

    def _start_decode(self, job: Job) -> None:
        if not job.decoding or job.gone or self.decoder is None:
            return
        if not self.decoder.there:  # RLD went meanwhile: MD begins from nothing when the KV is there
            self._without_relay(job)
            return
        self._see("kv_at_rld", job.request.rid, self._clock.now(), -1, 0, 0)
        self.decoder.add(job.stream)

    def _on_step(self, step: Step) -> None:
        self._to_router(Tokens(self.stage, [(stream.rid, index, token) for stream, index, token in step]))

    def _on_done(self, stream: Stream) -> None:
        self._finish(self._jobs[stream.rid])

    def _finish(self, job: Job) -> None:
        """The answer ended here. KV still under way stays useful to the session's next turn, and may go on."""
        job.gone = True
        rid = job.request.rid
        del self._jobs[rid]
        kv = None
        if self.handoffs is not None:
            self.handoffs.forget(rid)
        if job.ready and self.kv is not None:
            self.kv.drop(rid)
        if job.transfer is not None and self.kv is not None:
            job.transfer.gone = True
            if (self._spec.cancel_finished or job.transfer.started_s < 0) and self.kv.cancel(job.transfer):
                self._see("cancelled", rid, self._clock.now(), -1, 0, job.transfer.sent_bytes)
            kv = {"bytes": job.transfer.sent_bytes, "wire_bytes": None, "ns": None}
        eager = job.request.max_tokens if job.pipeline in ("P-RLD-MD", "P-RLD") else 0
        self._see("done", rid, self._clock.now(), -1, job.request.max_tokens, 0)
        self._to_router(Finish(rid, job.hit_tokens, job.pipeline, eager, None, kv))

    def _ready(self, message: Ready) -> None:
        """B has the KV: from now on the stream may be handed over."""
        assert self.kv is not None
        self.kv.landed(message.transfer)
        job = self._jobs.get(message.rid)
        if job is None or job.gone:
            self._send_later(self._to_b_kv, Drop(message.rid))
            return
        if job.pipeline == "P-MD":
            del self._jobs[message.rid]
            return
        job.ready = True
        if self._md_count:
            self._hand_over(job)
        elif job.adrift:
            self._fail(job, NOBODY.format(role="MD"))
        # else: nobody to hand over to, and RLD goes on to the end

    def _hand_over(self, job: Job) -> None:
        assert self.handoffs is not None
        self.handoffs.begin(job.stream, partial(self._handed_over, job))

    def _handed_over(self, job: Job) -> None:
        job.decoding = False
        self._jobs.pop(job.request.rid, None)

    def _given_up(self, rid: int, reason: str) -> None:
        """The ids of a request do not get through."""
        self._to_router(Failed(rid, reason))
        self._send_later(self._to_b_kv, Drop(rid))

    def _send_ids(self, message: Message) -> None:
        """Ids on their way to MD, unless they are to get lost or be late on purpose."""
        self._ids_sent += 1
        if not self._spec.ids_lost or self._ids_sent % self._spec.ids_lost:
            due_s = self._clock.now() + self._delay_s + self._spec.ids_late_s
            self._clock.call_at(due_s, self._to_b, message)

    def _send_later(self, send: Callable[[Message], None], message: Message) -> None:
        """A control message: one way of the link."""
        self._clock.call_at(self._clock.now() + self._delay_s, send, message)

    def _fail(self, job: Job, reason: str) -> None:
        job.gone = True
        self._jobs.pop(job.request.rid, None)
        self._see("failed", job.request.rid, self._clock.now(), -1, 0, 0)
        self._to_router(Failed(job.request.rid, reason))
        if job.transfer is not None and self.kv is not None:
            self.kv.leave(job.transfer)
            self.kv.complete(job.transfer)  # as if what others rely on were computed again elsewhere, at once

    def _cancel(self, rid: int) -> None:
        """The client is gone: stop what only it needed."""
        job = self._jobs.pop(rid, None)
        if job is None:
            if self._spec.arm != "baseline":
                self._send_later(self._to_b_kv, Drop(rid))
            if self.handoffs is not None:
                self.handoffs.took(rid)
            return
        job.gone = True
        self.prompts.prefill.drop(rid)
        if self.decoder is not None:
            self.decoder.discard(rid)
        if self.handoffs is not None:
            self.handoffs.forget(rid)
        if job.transfer is not None and self.kv is not None:
            self.kv.leave(job.transfer)

    def _change(self, role: str, count: int) -> None:
        """Instances of a role are lost or added."""
        if role == _md_role(self._spec):
            self._md_count = max(0, self._md_count + count)
            if self.kv is not None:
                self.kv.change(count)
            return
        for _ in range(abs(count)):
            if role == "P":
                if count > 0:
                    self.prompts.grow()
                else:
                    self._lose_p()
            elif self.decoder is not None and role == self._relay_name:
                if count > 0:
                    self.decoder.grow()
                else:
                    self._lose_relay()

    def _lose_p(self) -> None:
        lost = self.prompts.lose()
        left = self.prompts.there
        waiting = [] if left else [rid for rid, job in self._jobs.items() if not job.begun]
        for job in [job for rid in [*lost, *waiting] if (job := self._jobs.get(rid)) is not None]:
            if left:
                self._queue(job)
            else:
                self._fail(job, NOBODY.format(role="P"))

    def _lose_relay(self) -> None:
        """Its streams are recomputed beside (their KV is in P's cache), or wait for MD, or end as errors."""
        assert self.decoder is not None
        for stream in self.decoder.lose_last():
            job = self._jobs.get(stream.rid)
            if job is None:
                continue
            self._see("lost", stream.rid, self._clock.now(), -1, stream.made, 0)
            if self.handoffs is not None and self.handoffs.cut_short(stream):
                continue
            if self.decoder.there:
                stream.extend_tokens = stream.made
                self._clock.call_at(self._clock.now() + self._fabric_s(job), self._start_decode, job)
            else:
                self._without_relay(job)

    def _without_relay(self, job: Job) -> None:
        """No decoder is left here: MD goes on from the ids made so far once it has the KV."""
        if job.transfer is None or not self._md_count:
            self._fail(job, NOBODY.format(role=self._relay_name))
        elif job.ready:
            self._hand_over(job)
        else:
            job.adrift = True


def _md_role(spec: EmulatorSpec) -> str | None:
    """Name of the role that decodes in cluster B."""
    return {"pdd": "MD", "naive": "D", "baseline": None}[spec.arm]
