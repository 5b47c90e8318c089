"""Where a prompt is prefilled: one queue and cache for all instances of P, or a queue and cache each, and which."""

from __future__ import annotations

from collections.abc import Callable

from pddbench.deploy.emulator.blocks import Path, cut_path
from pddbench.deploy.emulator.messages import Submit
from pddbench.deploy.emulator.prefill import Prefill
from pddbench.deploy.emulator.radix import RadixCache
from pddbench.deploy.emulator.spec import EmulatorSpec, RoleSpec
from pddbench.wan.clock import Clock


def cache_of(role: RoleSpec, block_tokens: int, on_evict: Callable[[int, int], None] | None = None) -> RadixCache:
    """An empty prefix cache with a role's bounds."""
    capacity = None if role.cache_tokens is None else role.cache_tokens // block_tokens
    return RadixCache(capacity, role.cache_ttl_s, on_evict)


def cacheable(request: Submit, block_tokens: int) -> Path:
    """Blocks that may hit: the last token is always computed."""
    return cut_path(request.path, (request.prompt_tokens - 1) // block_tokens)


class Prompts:
    """Role P: queues, caches, and the choice between instances (`spec.placement`)."""

    def __init__(self, spec: EmulatorSpec, clock: Clock) -> None:
        self._spec, self._clock, self._role = spec, clock, spec.roles["P"]
        self._pooled = spec.placement == "pool"
        self.prefill = Prefill(
            clock, self._role, pooled=self._pooled, chunk_tokens=spec.chunk_tokens, packing=spec.chunk_packing
        )
        self._caches = [cache_of(self._role, spec.block_tokens) for _ in range(1 if self._pooled else self._role.count)]
        self.hit_tokens = self.prompt_tokens = 0

    @property
    def cached_blocks(self) -> int:
        """Blocks in all caches."""
        return sum(cache.blocks for cache in self._caches)

    @property
    def evicted_blocks(self) -> int:
        """Blocks evicted from all caches."""
        return sum(cache.evicted_blocks for cache in self._caches)

    @property
    def there(self) -> bool:
        """Whether any instance is left."""
        return self.prefill.there

    def submit(self, request: Submit, begin: Callable[[int, int], None], done: Callable[[int], None]) -> None:
        """Queue a prompt: `begin(hit_tokens, instance)` when it starts, `done(instance)` when it is prefilled."""

        def measure(number: int) -> tuple[int, int]:
            blocks = self._cache(number).match(cacheable(request, self._spec.block_tokens), self._clock.now())
            hit = blocks * self._spec.block_tokens
            self.hit_tokens += hit
            self.prompt_tokens += request.prompt_tokens
            begin(hit, number)
            return request.prompt_tokens - hit, hit

        def prefilled(number: int) -> None:
            self._cache(number).insert(request.path, self._clock.now())
            done(number)

        self.prefill.submit(request.rid, measure, prefilled, None if self._pooled else self._choose(request))

    def _cache(self, number: int) -> RadixCache:
        return self._caches[0 if self._pooled else number]

    def _choose(self, request: Submit) -> int:
        """The instance that a prompt goes to; what it will take there is remembered as queued work.

        `session`: always the same one for a session, whatever waits there. `prefix`: where it is predicted to be
        done first, by the engine's own law, hits and queue included. `least_loaded`: where the queue ends first.
        """
        alive = self.prefill.alive()
        path = cacheable(request, self._spec.block_tokens)
        hits = {number: self._caches[number].peek(path) * self._spec.block_tokens for number in alive}
        if self._spec.placement == "session":
            chosen = alive[request.session % len(alive)]
        elif self._spec.placement == "prefix":
            whole = request.prompt_tokens
            chosen = min(alive, key=lambda n: (self.prefill.predict_s(n, whole - hits[n], hits[n]), n))
        else:
            chosen = min(alive, key=lambda n: (self.prefill.predict_s(n, 0, 0), n))
        self.prefill.reserve(chosen, request.prompt_tokens - hits[chosen], hits[chosen])
        return chosen

    def lose(self) -> list[int]:
        """The last instance is gone, with its cache if that was its own; returns requests cut short."""
        if not self.there:
            return []
        number = self.prefill.alive()[-1]
        if not self._pooled:
            self._caches[number] = cache_of(self._role, self._spec.block_tokens)
        return self.prefill.lose(number)

    def grow(self) -> None:
        """One more instance, with an empty cache if it has its own."""
        if not self._pooled:
            self._caches.append(cache_of(self._role, self._spec.block_tokens))
        self.prefill.grow()
