"""Which request runs in the next step, and who owns which slot and block. No tensors.

    waiting --admit--> PREFILL --last chunk--> DECODE --stop--> finished
       ^                  |                      |
       +---- preempt -----+----------------------+

A preempted request is computed again, or its caches wait on the host and it goes on in the phase in which it was.
A request that is to be kept leaves its slot and blocks behind when it has ended: another goes on from there, or they
go to whoever needs them, what was kept first first.

Two rules keep it free of deadlock. A request is admitted only when a slot and the blocks of all its known tokens
are free, and it gets them at once; so a prefill never waits for memory. A decode row that needs one more block
takes it from the request admitted last; so the oldest always goes on.
"""

from collections import deque
from collections.abc import Sequence

from statewise.cache.slots import Places, Room
from statewise.cache.spec import KVSpec
from statewise.engine.counters import Preempted
from statewise.engine.request import Phase, Request
from statewise.engine.step import Changes, Eviction, Step
from statewise.errors import IntegrityError


class Scheduler:
    """First come, first served; the youngest is preempted first."""

    def __init__(
        self,
        slots: int,
        blocks: int,
        kv: KVSpec,
        max_batched_tokens: int,
        host: int = 0,
        slot_bytes: int = 0,
        piece: int | None = None,
    ):
        """host: bytes there for what is swapped out; 0: all is computed again.  slot_bytes: those of a slot.

        piece: tokens of a prompt's pieces, of which a step runs one or none; None: as many tokens as the budget holds.
        """
        self.slots = Places(slots, "slot")
        self.blocks = Places(blocks, "block")
        self.kv = kv
        self.max_batched_tokens = max_batched_tokens
        self.piece = piece
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order of admission
        self.kept: dict[Request, None] = {}  # ended, with slot and blocks; in the order in which they ended
        self.counts = Preempted()
        self._room, self._slot_bytes = Room(host), slot_bytes
        self._changes = Changes()

    @property
    def placed(self) -> list[Request]:
        """Every request that has a slot: those that run, and those that have ended and are kept."""
        return [*self.running, *self.kept]

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request. The engine has checked that it can ever fit."""
        self.waiting.append(request)

    def schedule(self) -> Step:
        """The next step. Decode rows first, then chunks of what is being prefilled, then new requests."""
        step, before = Step(), self.counts.preemptions
        for request in list(self.running):
            if request.phase is Phase.DECODE and not request.is_full and self._may_grow(request):
                step.decode.append(request)
        budget = self.max_batched_tokens - len(step.decode)
        for request in self.running:
            budget -= self._take_chunk(request, budget, step)
        while budget > 0 and self.counts.preemptions == before and self.waiting and self._can_admit(self.waiting[0]):
            request = self.waiting.popleft()
            self._admit(request, step)
            if request.phase is Phase.DECODE:
                step.decode.append(request)
                budget -= 1
            budget -= self._take_chunk(request, budget, step)
        step.changes = self.take_changes()
        return step

    def take_changes(self) -> Changes:
        """What is to be done before anything else is; the caller does it now."""
        changes, self._changes = self._changes, Changes()
        return changes

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
            request.behind = 0

    def finish(self, request: Request, keep: bool = False) -> None:
        """Take a request out, wherever it stands; its slot and blocks may go to another in the very next step.

        keep: they stay with it, if it has any.
        """
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
            if request.source is not None:
                self.release(request.source)
                request.source = None
            if request.kept is not None:
                request.kept = None
                self._room.give_back(request)
                evicted = self._changes.swapped_out
                self._changes.swapped_out = [one for one in evicted if one.request is not request]
        else:
            self.running.remove(request)
            if keep:
                self.kept[request] = None
            else:
                self._release(request)
        request.phase = Phase.FINISHED

    def release(self, request: Request) -> None:
        """Give up what is kept of an ended request. No effect if nothing is."""
        if request in self.kept:
            del self.kept[request]
            self._release(request)

    def preempt(self, request: Request) -> None:
        """Take a running request's slot and blocks; back to the head of the queue, its tokens kept.

        It is swapped out if the host has room for it, else computed again. A token of it that is still on its way does
        no harm: it is not admitted before that has arrived.
        """
        kept = self._keep(request)
        self.running.remove(request)
        self._release(request)
        request.phase, request.kept = Phase.WAITING, kept
        if kept is None:
            request.computed = request.behind = 0
        self.counts.preemptions += 1
        self.waiting.appendleft(request)

    def take_all(self) -> list[Request]:
        """Every request, and none is left here: for an engine that has failed. Nobody's place is free after it."""
        requests = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        self.kept.clear()
        return requests

    def permute(self, order: Sequence[int]) -> None:
        """What is in slot i is in slot ``order[i]`` from now on. Not before what `take_changes` returns is done."""
        self.slots.permute(order)
        for request in self.placed:
            assert request.slot is not None
            request.slot = order[request.slot]

    def unwritten(self) -> tuple[list[int], list[int]]:
        """Slots and blocks that are free, and have been spoiled since they were freed if poison is on."""
        slots = set(self.slots.free_places) - set(self._changes.freed_slots)
        blocks = set(self.blocks.free_places) - set(self._changes.freed_blocks)
        return sorted(slots), sorted(blocks)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless slots and blocks are owned by exactly the requests that run or are kept, and the
        host's room by those that are swapped out."""
        self.slots.check_integrity()
        self.blocks.check_integrity()
        for request in self.placed:
            if self.slots.owned_by(request) != [request.slot]:
                raise IntegrityError(f"{request} is in slot {request.slot}, owns {self.slots.owned_by(request)}")
            if self.blocks.owned_by(request) != request.blocks:
                raise IntegrityError(f"{request} uses blocks {request.blocks}, owns {self.blocks.owned_by(request)}")
            if self.kv.blocks_for(request.computed) > len(request.blocks):
                raise IntegrityError(f"{request} has {request.computed} tokens in {len(request.blocks)} blocks")
        if self.slots.count - self.slots.free_count != len(self.placed):
            raise IntegrityError(f"{len(self.placed)} requests have slots, {self.slots.free_count} are free")
        owned = sum(len(request.blocks) for request in self.placed)
        if self.blocks.count - self.blocks.free_count != owned:
            raise IntegrityError(f"{owned} blocks are in use, {self.blocks.free_count} are free")
        kept = [request for request in self.waiting if request.kept is not None]
        if set(self._room.owners) != set(kept):
            raise IntegrityError(f"{kept} are swapped out, the host keeps {self._room.owners}")

    def _can_admit(self, request: Request) -> bool:
        """Whether the host knows all of its tokens, and there is room, at the cost of what is kept of ended ones."""
        if request.arrived != request.known:
            return False
        slots, blocks = 1, self.kv.blocks_for(request.known)
        source = request.source if request.source in self.kept else None
        if source is not None:
            slots, blocks = 0, blocks - len(source.blocks)
        others = [kept for kept in self._droppable() if kept is not source]
        there = self.blocks.free_count + sum(len(kept.blocks) for kept in others)
        if self.slots.free_count + len(others) < slots or there < blocks:
            return False
        while not (self.slots.can_allocate(slots) and self.blocks.can_allocate(blocks)):
            self._drop(others.pop(0))
        return True

    def _droppable(self) -> list[Request]:
        """What is kept, longest kept first; behind it, what requests that wait are to go on from."""
        wanted = {request.source for request in self.waiting} if self.kept else set()
        return sorted(self.kept, key=wanted.__contains__)

    def _drop(self, kept: Request) -> None:
        self.release(kept)
        self.counts.kept_dropped += 1

    def _admit(self, request: Request, step: Step) -> None:
        source, request.source = request.source, None
        if source in self.kept:
            self._go_on(request, source)
        else:
            [request.slot] = self.slots.allocate(request)
        missing = self.kv.blocks_for(request.known) - len(request.blocks)
        request.blocks += self.blocks.allocate(request, missing)
        self.running.append(request)
        if request.kept is None:
            request.phase = Phase.PREFILL
            request.decode_runs.append(0)
            return
        request.phase, request.kept = request.kept, None
        step.swapped_in.append(request)
        self.counts.swaps_in += 1
        self.counts.swap_bytes += self._room.give_back(request)

    def _go_on(self, request: Request, source: Request) -> None:
        """Take over the slot and the blocks of a kept request, whose tokens ``request`` begins with."""
        del self.kept[source]
        self.slots.hand_over(source, request)
        self.blocks.hand_over(source, request)
        request.slot, request.blocks, source.slot, source.blocks = source.slot, source.blocks, None, []
        request.computed, request.behind = source.computed, source.decode_runs[-1]
        self.counts.continued_tokens += request.computed

    def _take_chunk(self, request: Request, budget: int, step: Step) -> int:
        """Give a request in PREFILL as many of its tokens as the budget holds. Returns how many."""
        count = request.known - request.computed if request.phase is Phase.PREFILL else 0
        if self.piece is None:
            count = min(count, budget)
        elif min(count, self.piece) <= budget:
            count = min(count, self.piece)
        else:
            count = 0
        if count > 0:
            step.prefill.append((request, count))
        return count

    def _may_grow(self, request: Request) -> bool:
        """See that a decode row has a block for its token, at the cost of younger requests. False if it cost itself."""
        while self.kv.blocks_for(request.computed + 1) > len(request.blocks):
            if self.blocks.can_allocate():
                request.blocks += self.blocks.allocate(request)
            elif self.kept:
                self._drop(self._droppable()[0])
            else:
                victim = self.running[-1]
                self.preempt(victim)
                if victim is request:
                    return False
        return True

    def _keep(self, request: Request) -> Phase | None:
        """See that what a request has computed is copied to the host. Returns the phase in which it goes on.

        None: it has nothing that is worth it (none of its tokens has run, or it ends when its last one arrives), or the
        host has no room.
        """
        if self._room.limit == 0 or request.computed == 0 or request.is_full:
            return None
        assert request.slot is not None
        blocks = request.blocks[: self.kv.blocks_for(request.computed)]
        size = self._slot_bytes + len(blocks) * self.kv.bytes_per_block
        if not self._room.take(request, size):
            self.counts.swaps_refused += 1
            return None
        self._changes.swapped_out.append(Eviction(request, request.slot, blocks))
        self.counts.swaps_out += 1
        self.counts.swap_bytes += size
        return request.phase

    def _release(self, request: Request) -> None:
        assert request.slot is not None
        self.slots.free(request, [request.slot])
        self.blocks.free(request, request.blocks)
        self._changes.freed_slots.append(request.slot)
        self._changes.freed_blocks += request.blocks
        request.slot, request.blocks = None, []
