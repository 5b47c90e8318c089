"""A TCP transfer as the standards say, segment by segment: what the measured times over netem and TUN are held against.

One sender, one receiver, a line with a rate and a delay, random loss of segments. Every figure is a standard's, or
Linux's where that is its documented default; none is fitted to a measurement:

* initial window of ten segments (RFC 6928), slow start, a new connection's handshake;
* a receiver that acknowledges every second segment, or at once when one is missing or the sender is in its first
  sixteen (RFC 5681; Linux's quick acknowledgements), else after 40 ms (Linux's least delay);
* loss found by selective acknowledgements of three later segments (RFC 6675), recovery paced to what is delivered
  (RFC 6937), a tail probe after two round trips (RFC 8985), a retransmission timer of at least 200 ms (RFC 6298 says
  1 s; Linux's TCP_RTO_MIN);
* Reno (RFC 5681), or Cubic (RFC 9438: C 0.4, beta 0.7, fast convergence, its Reno-friendly region) with HyStart, which
  ends slow start when the round trip grows by an eighth, 4 to 16 ms (Ha and Rhee 2011; RFC 9406's bounds), or when the
  acknowledgements of a round have come in a train as long as the round trip's half.
"""

from __future__ import annotations

import heapq
import itertools
import random

SEGMENT_BYTES = 1448
FRAME_BYTES = 1514
_ACK_BYTES = 66
_INITIAL_WINDOW = 10
_QUICK_ACKS = 16
_DELAYED_ACK_S = 0.040
_RTO_MIN_S, _RTO_MAX_S, _RTO_FIRST_S = 0.2, 120.0, 1.0
_LEAST_ALONE_S = 0.2  # RFC 8985: WCDelAckT
_DUPLICATES = 3


class Reno:
    """RFC 5681, counting segments."""

    beta = 0.5
    hystart = False

    def __init__(self) -> None:
        self.window, self.threshold = float(_INITIAL_WINDOW), float("inf")

    def acked(self, count: int, now: float, rtt_s: float) -> None:
        """Segments acknowledged outside of a recovery."""
        if self.window < self.threshold:
            grown = min(count, max(0.0, self.threshold - self.window))
            self.window, count = self.window + grown, count - int(grown)
        if self.window >= self.threshold and count > 0:
            self.avoid(count, now, rtt_s)

    def avoid(self, count: int, now: float, rtt_s: float) -> None:
        """Congestion avoidance."""
        self.window += count / self.window

    def lost(self, now: float) -> None:
        """A loss was found: the threshold is what the window will be after the recovery."""
        self.threshold = max(2.0, self.window * self.beta)


class Cubic(Reno):
    """RFC 9438."""

    beta = 0.7
    hystart = True
    _C = 0.4

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0.0
        self._epoch_s: float | None = None
        self._k_s = self._estimate = 0.0

    def avoid(self, count: int, now: float, rtt_s: float) -> None:
        """The cubic function of the time since the last loss, but not below what Reno would have."""
        if self._epoch_s is None:
            self._epoch_s, self._estimate = now, self.window
            if self.peak <= self.window:
                self.peak, self._k_s = self.window, 0.0
            else:
                self._k_s = ((self.peak - self.window) / self._C) ** (1 / 3)
        t = now - self._epoch_s + rtt_s
        target = self.peak + self._C * (t - self._k_s) ** 3
        target = min(max(target, self.window), 1.5 * self.window)
        alpha = 3 * (1 - self.beta) / (1 + self.beta) if self._estimate < self.peak else 1.0
        self._estimate += alpha * count / self.window
        grown = self.window + count * (target - self.window) / self.window
        self.window = max(grown, self._estimate)

    def lost(self, now: float) -> None:
        """Fast convergence: a flow that did not get back to its peak leaves room to others."""
        self.peak = self.window * (1 + self.beta) / 2 if self.window < self.peak else self.window
        super().lost(now)
        self._epoch_s = None


_CONTROLS = {"reno": Reno, "cubic": Cubic}


class Transfer:
    """One transfer. `seconds()`: from the connect to the arrival of the last byte at the receiver."""

    def __init__(
        self, n_bytes: int, one_way_s: float, rate_mbit: float, loss: float, control: str, draw: random.Random
    ) -> None:
        self._total = -(-n_bytes // SEGMENT_BYTES)
        self._one_way_s, self._segment_s = one_way_s, FRAME_BYTES * 8 / rate_mbit / 1e6
        self._ack_s = _ACK_BYTES * 8 / rate_mbit / 1e6
        self._loss, self._draw = loss, draw
        self._control = _CONTROLS[control]()
        self._events: list[tuple[float, int, str, tuple]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._free_s = self._back_free_s = 0.0
        # sender
        self._next = self._una = 0
        self._sacked: set[int] = set()
        self._lost: set[int] = set()
        self._again: set[int] = set()  # of the lost ones, those sent again and not known to be lost again
        self._resent: set[int] = set()
        self._read = self._looked = 0  # how much of the receiver's log, and of the numbers, was looked at
        self._top: list[int] = []  # the highest three that arrived
        self._sent_s: dict[int, float] = {}
        self._order_of: dict[int, int] = {}  # in which order segments were last sent (RACK)
        self._sends = itertools.count()
        self._highest = -1
        self._recover = -1  # end of the recovery that is on, -1: none
        self._prr_delivered = self._prr_out = 0
        self._flight_at_loss = 0
        self._srtt_s = self._rttvar_s = 0.0
        self._backoff, self._timer = 1, 0
        self._probed = False
        self._min_rtt_s = float("inf")
        self._round_end, self._round_start_s, self._round_rtts = 0, 0.0, []
        self._train_s = 0.0
        # receiver
        self._have: set[int] = set()
        self._log: list[int] = []  # what arrived, in that order: an acknowledgement says how much of it
        self._expected = self._unacked = 0
        self._acks_made = 0
        self._delayed = 0
        self._done_s = 0.0

    def seconds(self) -> float:
        rtt_s = 2 * self._one_way_s + 2 * self._ack_s
        self._now = self._handshake_s(rtt_s)
        self._rtt(rtt_s)
        self._round_start_s = self._now
        self._send()
        while not self._done_s:
            self._now, _, what, words = heapq.heappop(self._events)
            getattr(self, what)(*words)
        return self._done_s

    def _at(self, s: float, what: str, *words) -> None:
        heapq.heappush(self._events, (s, next(self._order), what, words))

    def _handshake_s(self, rtt_s: float) -> float:
        """A lost SYN, or its answer, is sent again after a second, two, four."""
        waited_s, again_s = 0.0, _RTO_FIRST_S
        while self._draw.random() < 1 - (1 - self._loss) ** 2:
            waited_s, again_s = waited_s + again_s, again_s * 2
        return waited_s + rtt_s

    # --- the line

    def _transmit(self, number: int) -> None:
        self._sent_s[number] = self._now
        self._order_of[number] = next(self._sends)
        if self._draw.random() >= self._loss:
            self._free_s = max(self._free_s, self._now) + self._segment_s
            self._at(self._free_s + self._one_way_s, "_arrive", number)

    def _acknowledge(self) -> None:
        self._unacked, self._delayed = 0, self._delayed + 1
        self._acks_made += 1
        if self._draw.random() >= self._loss:
            self._back_free_s = max(self._back_free_s, self._now) + self._ack_s
            self._at(self._back_free_s + self._one_way_s, "_acked", self._expected, len(self._log))

    # --- the receiver

    def _arrive(self, number: int) -> None:
        in_order = number == self._expected
        if number >= self._expected and number not in self._have:
            self._have.add(number)
            self._log.append(number)
        holes = len(self._have) > in_order
        while self._expected in self._have:
            self._have.discard(self._expected)
            self._expected += 1
        if self._expected == self._total:
            self._done_s = self._now
            return
        self._unacked += 1
        if holes or not in_order or self._unacked >= 2 or self._acks_made < _QUICK_ACKS:
            self._acknowledge()
        elif self._unacked == 1:
            self._at(self._now + _DELAYED_ACK_S, "_delay_over", self._delayed)

    def _delay_over(self, which: int) -> None:
        if which == self._delayed and self._unacked:
            self._acknowledge()

    # --- the sender

    def _pipe(self) -> int:
        return self._next - self._una - len(self._sacked) - len(self._lost) + len(self._again)

    def _rtt(self, rtt_s: float) -> None:
        if not self._srtt_s:
            self._srtt_s, self._rttvar_s = rtt_s, rtt_s / 2
        else:
            self._rttvar_s += (abs(rtt_s - self._srtt_s) - self._rttvar_s) / 4
            self._srtt_s += (rtt_s - self._srtt_s) / 8
        self._min_rtt_s = min(self._min_rtt_s, rtt_s)

    def _rto_s(self) -> float:
        return min(_RTO_MAX_S, (self._srtt_s + max(_RTO_MIN_S, 4 * self._rttvar_s)) * self._backoff)

    def _acked(self, una: int, logged: int) -> None:
        news = self._log[self._read : logged]
        self._read = max(self._read, logged)
        newest = max(news, key=self._order_of.__getitem__, default=None)
        if newest is not None:
            if newest not in self._resent:  # Karn: which of the two was acknowledged is not known
                self._sample(self._now - self._sent_s[newest])
            self._backoff, self._probed = 1, False
            self._highest = max(self._highest, self._order_of[newest])
        for n in news:
            self._lost.discard(n)
            self._again.discard(n)
        self._sacked.update(n for n in news if n >= una)
        for n in range(self._una, una):
            self._sacked.discard(n)
        self._una = max(self._una, una)
        delivered = len(news)
        self._top = heapq.nlargest(_DUPLICATES, [*self._top, *news])
        self._find_losses()
        if self._recover >= 0 and self._una > self._recover:
            self._recover = -1
            self._control.window = self._control.threshold
        if self._recover < 0 and self._lost:
            self._begin_recovery()
        if self._recover >= 0:
            self._prr(delivered)
        elif delivered:
            self._control.acked(delivered, self._now, self._srtt_s)
        self._send()

    def _sample(self, rtt_s: float) -> None:
        self._rtt(rtt_s)
        control = self._control
        if not control.hystart or control.window >= control.threshold:
            return
        if self._una >= self._round_end:
            self._round_end, self._round_start_s, self._round_rtts = self._next, self._now, []
            self._train_s = self._now
        if control.window < 16:
            return
        if self._now - self._train_s <= 0.002:
            self._train_s = self._now
            if self._now - self._round_start_s > self._min_rtt_s / 2:
                control.threshold = control.window
                return
        if len(self._round_rtts) < 8:
            self._round_rtts.append(rtt_s)
        elif min(self._round_rtts) > self._min_rtt_s + min(max(self._min_rtt_s / 8, 0.004), 0.016):
            control.threshold = control.window

    def _find_losses(self) -> None:
        """A segment is lost when three that were sent after it have been acknowledged."""
        if len(self._top) == _DUPLICATES and self._sacked:
            for n in range(max(self._una, self._looked), self._top[-1]):
                if n not in self._sacked:
                    self._lost.add(n)
            self._looked = max(self._looked, self._top[-1])
        self._again -= {n for n in self._again if self._highest >= self._order_of[n] + _DUPLICATES}

    def _begin_recovery(self) -> None:
        self._recover = self._next - 1
        self._control.lost(self._now)
        self._flight_at_loss = max(1, self._next - self._una)
        self._prr_delivered = self._prr_out = 0

    def _prr(self, delivered: int) -> None:
        """RFC 6937: as much as was delivered, in proportion to the reduction."""
        self._prr_delivered += delivered
        pipe, threshold = self._pipe(), self._control.threshold
        if pipe > threshold:
            room = -(-self._prr_delivered * threshold // self._flight_at_loss) - self._prr_out
        else:
            room = min(threshold - pipe, max(self._prr_delivered - self._prr_out, delivered) + 1)
        if not self._prr_out:
            room = max(room, 1)  # the first retransmission goes at once
        self._control.window = pipe + max(0.0, room)

    def _send(self) -> None:
        waiting = sorted(self._lost - self._again, reverse=True)
        while self._pipe() < int(self._control.window):
            if waiting:
                number = waiting.pop()
                self._again.add(number)
                self._resent.add(number)
            elif self._next < self._total:
                number = self._next
                self._next += 1
            else:
                break
            self._prr_out += self._recover >= 0
            self._transmit(number)
        self._arm()

    def _arm(self) -> None:
        self._timer += 1
        if self._una >= self._next:
            return
        wait_s = self._rto_s()
        if not self._probed and self._recover < 0 and not self._sacked:
            wait_s = min(
                wait_s, max(2 * self._srtt_s, 0.010) + (_DELAYED_ACK_S * 5 if self._next - self._una == 1 else 0)
            )
            self._at(self._now + wait_s, "_probe", self._timer)
        else:
            self._at(self._now + wait_s, "_timeout", self._timer)

    def _probe(self, which: int) -> None:
        """A tail probe: the last segment again (or a new one), so that its acknowledgement shows what is missing."""
        if which != self._timer:
            return
        self._probed = True
        if self._next < self._total:
            self._next += 1
        else:
            self._resent.add(self._next - 1)
        self._transmit(self._next - 1)
        self._arm()

    def _timeout(self, which: int) -> None:
        if which != self._timer:
            return
        self._control.lost(self._now)
        self._control.window = 1.0
        self._lost = {n for n in range(self._una, self._next) if n not in self._sacked}
        self._again = set()
        self._recover, self._backoff = -1, self._backoff * 2
        self._send()


def mean_s(n_bytes, rtt_ms, rate_mbit, loss_pct, control, times=200, seed=1):
    """Mean of many draws, and its standard error."""
    draw = random.Random(seed)
    found = [Transfer(n_bytes, rtt_ms / 2e3, rate_mbit, loss_pct / 100, control, draw).seconds() for _ in range(times)]
    mean = sum(found) / times
    error = (sum((s - mean) ** 2 for s in found) / max(1, times - 1) / times) ** 0.5
    return mean, error, found
