"""Which request runs in the next step, and who owns which slot and block. No tensors.

    waiting --admit--> PREFILL --last chunk--> DECODE --stop--> finished
       ^                  |                      |
       +---- preempt -----+----------------------+

Two rules keep it free of deadlock. A request is admitted only when a slot and the blocks of all its known tokens
are free, and it gets them at once; so a prefill never waits for memory. A decode row that needs one more block
takes it from the request admitted last; so the oldest always goes on.
"""

from collections import deque
from dataclasses import dataclass, field

from statewise.cache.slots import Places
from statewise.cache.spec import KVSpec
from statewise.engine.request import Phase, Request
from statewise.errors import IntegrityError


@dataclass
class Step:
    """What to run: decode rows, one token each, and prefill chunks of so many tokens."""

    decode: list[Request] = field(default_factory=list)
    prefill: list[tuple[Request, int]] = field(default_factory=list)
    freed_slots: list[int] = field(default_factory=list)  # since the step before; perhaps owned again by now
    freed_blocks: list[int] = field(default_factory=list)

    @property
    def sampled(self) -> list[Request]:
        """The requests that it gives a token, in the order of its rows: decode rows, then prefills that it ends."""
        return [
            *self.decode,
            *(request for request, count in self.prefill if request.computed + count == request.known),
        ]


class Scheduler:
    """First come, first served; preemption by recompute, youngest first."""

    def __init__(self, slots: int, blocks: int, kv: KVSpec, max_batched_tokens: int):
        self.slots = Places(slots, "slot")
        self.blocks = Places(blocks, "block")
        self.kv = kv
        self.max_batched_tokens = max_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order of admission
        self.preemptions = 0
        self._freed_slots: list[int] = []
        self._freed_blocks: list[int] = []

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request. The engine has checked that it can ever fit."""
        self.waiting.append(request)

    def schedule(self) -> Step:
        """The next step. Decode rows first, then chunks of what is being prefilled, then new requests."""
        step, before = Step(), self.preemptions
        for request in list(self.running):
            if request.phase is Phase.DECODE and not request.is_full and self._may_grow(request):
                step.decode.append(request)
        budget = self.max_batched_tokens - len(step.decode)
        for request in self.running:
            budget -= self._take_chunk(request, budget, step)
        while budget > 0 and self.preemptions == before and self.waiting and self._can_admit(self.waiting[0]):
            request = self.waiting.popleft()
            self._admit(request)
            budget -= self._take_chunk(request, budget, step)
        step.freed_slots, self._freed_slots = self._freed_slots, []
        step.freed_blocks, self._freed_blocks = self._freed_blocks, []
        return step

    def advance(self, step: Step) -> None:
        """Book a step that has been launched; its tokens may be still to come."""
        for request in step.sampled:
            request.phase = Phase.DECODE
            request.sampled += 1
        for request in step.decode:
            request.computed += 1
            request.decode_runs[-1] += 1
        for request, count in step.prefill:
            request.computed += count

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it stands; its slot and blocks may go to another in the very next step."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._release(request)
        request.phase = Phase.FINISHED

    def check_integrity(self) -> None:
        """Raise IntegrityError unless slots and blocks are owned by exactly the requests that run."""
        self.slots.check_integrity()
        self.blocks.check_integrity()
        for request in self.running:
            if self.slots.owned_by(request) != [request.slot]:
                raise IntegrityError(f"{request} runs in slot {request.slot}, owns {self.slots.owned_by(request)}")
            if self.blocks.owned_by(request) != request.blocks:
                raise IntegrityError(f"{request} uses blocks {request.blocks}, owns {self.blocks.owned_by(request)}")
            if self.kv.blocks_for(request.computed) > len(request.blocks):
                raise IntegrityError(f"{request} has {request.computed} tokens in {len(request.blocks)} blocks")
        if self.slots.count - self.slots.free_count != len(self.running):
            raise IntegrityError(f"{len(self.running)} requests run, {self.slots.free_count} slots are free")
        owned = sum(len(request.blocks) for request in self.running)
        if self.blocks.count - self.blocks.free_count != owned:
            raise IntegrityError(f"{owned} blocks are in use, {self.blocks.free_count} are free")

    def _can_admit(self, request: Request) -> bool:
        return self.slots.can_allocate() and self.blocks.can_allocate(self.kv.blocks_for(request.known))

    def _admit(self, request: Request) -> None:
        [request.slot] = self.slots.allocate(request)
        request.blocks = self.blocks.allocate(request, self.kv.blocks_for(request.known))
        request.phase = Phase.PREFILL
        request.decode_runs.append(0)
        self.running.append(request)

    def _take_chunk(self, request: Request, budget: int, step: Step) -> int:
        """Give a request in PREFILL as many of its tokens as the budget holds. Returns how many."""
        count = min(request.known - request.computed, budget) if request.phase is Phase.PREFILL else 0
        if count > 0:
            step.prefill.append((request, count))
        return count

    def _may_grow(self, request: Request) -> bool:
        """See that a decode row has a block for its token, at the cost of younger requests. False if it cost itself."""
        while self.kv.blocks_for(request.computed + 1) > len(request.blocks):
            if self.blocks.can_allocate():
                request.blocks += self.blocks.allocate(request)
            else:
                victim = self.running[-1]
                self._preempt(victim)
                if victim is request:
                    return False
        return True

    def _preempt(self, request: Request) -> None:
        """Back to the head of the queue, its tokens kept, its state to be computed again.

        A token that is still on its way arrives before the next call of `schedule`: a step that preempts admits nobody.
        """
        self.running.remove(request)
        self._release(request)
        request.phase, request.computed = Phase.WAITING, 0
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        assert request.slot is not None
        self.slots.free(request, [request.slot])
        self.blocks.free(request, request.blocks)
        self._freed_slots.append(request.slot)
        self._freed_blocks += request.blocks
        request.slot, request.blocks = None, []
