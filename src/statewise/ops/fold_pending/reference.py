"""Folding as a loop over slots and rows: the recurrence itself."""

from torch import Tensor

from statewise.ops.common import accumulation_dtype
from statewise.ops.rounding import to_stored
from statewise.ops.state_step.reference import recur


def fold_pending(
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    A: Tensor,
    slots: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    rand_seed: Tensor | None,
    rand_layer: int,
) -> None:
    A = A.to(accumulation_dtype(state, x_ring))
    for i, slot in enumerate(slots.tolist()):
        rows = (x_ring[slot], B_ring[slot], dt_ring[slot], int(ring_start[slot]), int(pending[slot]))
        new = folded(state[slot].to(A.dtype), *rows, A)
        state[slot] = to_stored(new[None], state.dtype, slots[i : i + 1], rand_seed, rand_layer)[0]


def folded(
    current: Tensor, x_ring: Tensor, B_ring: Tensor, dt_ring: Tensor, start: int, live: int, A: Tensor
) -> Tensor:
    """The state of a slot after its pending rows. current: its checkpoint, in A's dtype; rings: those of the slot."""
    for j in range(live):
        r = (start + j) % x_ring.shape[1]
        x, B, dt = (ring[:, r].to(A.dtype) for ring in (x_ring, B_ring, dt_ring))
        _, current = recur(current, x, dt, A, B, B)
    return current
