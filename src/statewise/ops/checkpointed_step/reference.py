"""The checkpointed step, sequentially: restore the state from the checkpoint and the ring, then take the new tokens."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype, finish, time_step
from statewise.ops.fold_pending.reference import folded
from statewise.ops.rounding import to_stored
from statewise.ops.state_step.reference import recur


def checkpointed_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    read_slots: Tensor,
    write_slots: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    rand_seed: Tensor | None,
    rand_layer: int,
) -> Tensor:
    acc = accumulation_dtype(x, state)
    tokens, ring_rows = x.shape[1], x_ring.shape[2]
    step = time_step(dt, dt_bias, dt_limit, acc)
    A = A.to(acc)
    out = torch.zeros_like(x)
    for row, (src, own) in enumerate(zip(read_slots.tolist(), write_slots.tolist(), strict=True)):
        if src < 0 or own < 0:
            continue
        start, live = int(ring_start[own]), int(pending[own])
        current = folded(state[src].to(acc), x_ring[own], B_ring[own], dt_ring[own], start, live, A)
        if live + tokens > window:
            own_slot = write_slots[row : row + 1]
            state[own] = to_stored(current[None], state.dtype, own_slot, rand_seed, rand_layer)[0]
        for t in range(tokens):
            x_new, B_new, C_new = x[row, t].to(acc), B[row, t].to(acc), C[row, t].to(acc)
            y, current = recur(current, x_new, step[row, t], A, B_new, C_new)
            out[row, t] = finish(y, x_new, D, None if z is None else z[row, t]).to(x.dtype)
            r = (start + live + t) % ring_rows
            x_ring[own, :, r], B_ring[own, :, r] = x[row, t], B[row, t]
            dt_ring[own, :, r] = step[row, t]
    return out
