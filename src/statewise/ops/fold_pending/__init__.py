"""Fold pending rows into their states, so that a prefill can go on from there."""

from torch import Tensor

from statewise.ops.common import expect, expect_shape, expect_slots, implementation
from statewise.ops.rounding import expect_rounding


def fold_pending(
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    A: Tensor,
    slots: Tensor,
    *,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    rand_seed: Tensor | None = None,
    rand_layer: int = 0,
    backend: str = "torch",
) -> None:
    """Write what the checkpoint and the pending rows of each slot add up to as its checkpoint.

    A step that flushes does the same on its way; this is for a slot whose next rows are a prefill, which reads the
    state alone: once a turn of a conversation, not once a token. The trackers are read, never written: the caller sets
    both to 0.

    state: (S, H, P, N).  x_ring: (S, H, R, P).  B_ring: (S, G, R, N).  dt_ring: (S, H, R), after bias, softplus and
    clamp.  A: (H,), negative.  ring_start, pending: (S,), int32; pending at most window.  slots: (n,), int32 or int64,
    each its own, none negative.  window: W.
    rand_seed, rand_layer: as in `checkpointed_step`.

    Sums are float32 (float64 if a tensor is). Waits for no device. The triton backend has no kernel for it: the torch
    form runs. Raises ArgumentError where shapes do not fit or a rand_seed has nothing to round.
    """
    op = "fold_pending"
    expect(state.dim() == 4 and B_ring.dim() == 4, op, "state and B_ring are expected with 4 dimensions")
    (count, heads, head_dim, state_size), (groups, rows) = state.shape, B_ring.shape[1:3]
    expect(heads % groups == 0, op, f"{heads} heads do not divide into {groups} groups")
    expect(1 <= window <= rows, op, f"window is {window}, expected 1 to {rows}, the rows of a ring")
    expect_shape(
        op,
        x_ring=(x_ring, (count, heads, rows, head_dim)),
        B_ring=(B_ring, (count, groups, rows, state_size)),
        dt_ring=(dt_ring, (count, heads, rows)),
        A=(A, (heads,)),
        slots=(slots, (slots.shape[0],)),
        ring_start=(ring_start, (count,)),
        pending=(pending, (count,)),
    )
    expect_slots(op, slots=slots)
    expect_rounding(op, state, rand_seed, rand_layer)
    run = implementation(op, "torch" if backend == "triton" else backend)
    run(state, x_ring, B_ring, dt_ring, A, slots.long(), ring_start, pending, window, rand_seed, rand_layer)
