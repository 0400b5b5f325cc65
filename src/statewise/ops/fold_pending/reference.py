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
    acc = accumulation_dtype(state, x_ring)
    for i, slot in enumerate(slots.tolist()):
        current = state[slot].to(acc)
        for j in range(int(pending[slot])):
            r = (int(ring_start[slot]) + j) % x_ring.shape[2]
            B = B_ring[slot, :, r].to(acc)
            _, current = recur(current, x_ring[slot, :, r].to(acc), dt_ring[slot, :, r].to(acc), A.to(acc), B, B)
        state[slot] = to_stored(current[None], state.dtype, slots[i : i + 1], rand_seed, rand_layer)[0]
