"""The checkpointed step: T new tokens a row against a checkpoint that is read and, about once in W tokens, written."""

from torch import Tensor

from statewise.ops.common import NO_LIMIT, expect, expect_groups, expect_shape, expect_slots, implementation
from statewise.ops.rounding import expect_rounding


def checkpointed_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    *,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    read_slots: Tensor,
    write_slots: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_limit: tuple[float, float] = NO_LIMIT,
    rand_seed: Tensor | None = None,
    rand_layer: int = 0,
    prefetch: bool = False,
    backend: str = "torch",
) -> Tensor:
    """Outputs of T new tokens a row; the tokens join the ring, and a full ring is folded into the checkpoint first.

    A row's slot holds a checkpoint and ``pending`` ring rows, oldest at ``ring_start``. If pending + T > window,
    the pending rows (not the new ones: a speculative token may yet be rejected) are folded into the checkpoint at
    ``write_slots``. The new rows go to ring places (ring_start + pending + i) % R either way. The trackers are read,
    never written: `statewise.ops.advance_trackers` moves them, once a step for all layers.

    x: (B, T, H, P), activation dtype, 1 <= T <= window.  dt: (B, T, H), raw.  A: (H,), negative.  B, C: (B, T, G, N).
    state: (S, H, P, N).  x_ring: (S, H, R, P) and B_ring: (S, G, R, N), activation dtype, R >= window + T.
    dt_ring: (S, H, R), float32 (float64 in double precision), after bias, softplus and clamp.
    ring_start, pending: (S,), int32.
    window: W, the most rows ever pending; 1 is the plain step (`state_step`), bit for bit: it takes T = 1 and uses
    no ring.
    read_slots: (B,), where the checkpoint is read.  write_slots: (B,) or None (the same): the row's own slot, where its
    ring and trackers are and a flush is written.  -1 in either marks a padded row: it reads and writes nothing,
    its output is zero. No row may write a slot that another row reads or writes.
    D, dt_bias: (H,).  z: (B, T, H, P).  All four options may be None or left out.
    rand_seed: (1,), int64, or None: whether a flush rounds a float16 or bfloat16 checkpoint stochastically.
    rand_layer: tells apart the layers that share a seed.  prefetch: a promise of the caller. All three as in
    `state_step`, but that prefetch speaks of rings and trackers too.

    Returns (B, T, H, P) in x's dtype. Raises ArgumentError where shapes do not fit or a rand_seed has nothing to round.
    The tensors are those of FlashInfer's ``checkpointing_ssu`` (0.7 and later); the README beside this derives it.
    """
    op = "checkpointed_step"
    write_slots = read_slots if write_slots is None else write_slots
    ring = (x_ring, B_ring, dt_ring, ring_start, pending, window)
    expect_step(op, x, dt, A, B, C, state, *ring, read_slots, write_slots, D, z, dt_bias)
    expect_rounding(op, state, rand_seed, rand_layer)
    run = implementation(op, backend)
    launch = {"prefetch": prefetch} if backend == "triton" else {}
    if window == 1:
        gate = None if z is None else z[:, 0]
        options = (read_slots, write_slots, D, gate, dt_bias, dt_limit, rand_seed, rand_layer)
        plain = implementation("state_step", backend)
        return plain(x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], state, *options, **launch)[:, None]
    options = (read_slots, write_slots, D, z, dt_bias, dt_limit, rand_seed, rand_layer)
    return run(x, dt, A, B, C, state, *ring, *options, **launch)


def expect_step(
    op: str,
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
) -> None:
    """Raise ArgumentError unless these fit together as `checkpointed_step` says."""
    batch, tokens, heads, head_dim = x.shape
    groups, state_size = B.shape[2:]
    slots, _, ring_rows, _ = x_ring.shape
    expect_shape(
        op,
        dt=(dt, (batch, tokens, heads)),
        A=(A, (heads,)),
        B=(B, (batch, tokens, groups, state_size)),
        C=(C, (batch, tokens, groups, state_size)),
        state=(state, (slots, heads, head_dim, state_size)),
        x_ring=(x_ring, (slots, heads, ring_rows, head_dim)),
        B_ring=(B_ring, (slots, groups, ring_rows, state_size)),
        dt_ring=(dt_ring, (slots, heads, ring_rows)),
        ring_start=(ring_start, (slots,)),
        pending=(pending, (slots,)),
        D=(D, (heads,)),
        z=(z, (batch, tokens, heads, head_dim)),
        dt_bias=(dt_bias, (heads,)),
        read_slots=(read_slots, (batch,)),
        write_slots=(write_slots, (batch,)),
    )
    expect_slots(op, read_slots=read_slots, write_slots=write_slots)
    expect_groups(op, heads, groups)
    expect(
        1 <= tokens <= window,
        op,
        f"T = {tokens} new tokens, expected 1 to window = {window}",
    )
    enough = window == 1 or ring_rows >= window + tokens
    expect(enough, op, f"R = {ring_rows} ring rows, expected at least {window + tokens}")
