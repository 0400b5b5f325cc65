"""What must hold after every step, looked at on the device: trackers of live requests, and memory that is nobody's.

For debugging, with poison on: it waits for the device, and for what is free it reads all of it.
"""

from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.cache.window import predicted_trackers
from statewise.engine.request import Phase, Request
from statewise.engine.scheduler import Scheduler
from statewise.engine.token_counts import TokenCounts
from statewise.errors import IntegrityError


def check_trackers(pool: MambaPool, scheduler: Scheduler) -> None:
    """Raise IntegrityError unless the trackers of all who have a state are where their decode steps have moved them."""
    starts, pending = pool.ring_start.tolist(), pool.pending.tolist()
    for request in scheduler.placed:
        if request.computed:
            assert request.slot is not None
            found = starts[request.slot], pending[request.slot]
            expected = expected_trackers(request, pool.spec.checkpoint_interval)
            if found != expected:
                raise IntegrityError(f"{request} has ring_start and pending {found}, expected {expected}")


def expected_trackers(request: Request, window: int) -> tuple[int, int]:
    """The trackers of a request that has a state, from its decode steps since it was prefilled, or its source's."""
    return predicted_trackers(request.behind if request.phase is Phase.PREFILL else request.decode_runs[-1], window)


def check_unwritten(pool: MambaPool, kv: PagedKV, counts: TokenCounts, scheduler: Scheduler) -> None:
    """Raise IntegrityError if anybody has written to a slot or a block since it was freed."""
    slots, blocks = scheduler.unwritten()
    for slot in slots if not (pool.is_forgotten(slots) and counts.is_forgotten(slots)) else ():
        if not (pool.is_forgotten([slot]) and counts.is_forgotten([slot])):
            raise IntegrityError(f"slot {slot} is free, but was written to")
    if not kv.is_forgotten(blocks):
        written = [block for block in blocks if not kv.is_forgotten([block])]
        raise IntegrityError(f"blocks {written} are free, but were written to")
