"""Move the ring trackers after a step, once for all layers."""

from torch import Tensor, int32, int64  # a name `torch` here would become the backend of that name once it is imported

from statewise.ops.common import expect, expect_shape, expect_slots, implementation


def advance_trackers(
    ring_start: Tensor,
    pending: Tensor,
    slots: Tensor,
    *,
    tokens: int,
    accepted: int | Tensor,
    window: int,
    ring_rows: int,
    counts: Tensor | None = None,
    backend: str = "torch",
) -> None:
    """Move ``ring_start`` and ``pending`` of the rows' slots past a step of ``tokens`` new tokens, in place.

        pending + tokens > window:   ring_start = (ring_start + pending) % ring_rows;  pending = accepted
        otherwise:                   pending += accepted
        window 1 (the plain step):   neither moves, every row flushes

    That is `statewise.cache.window.advance`, applied to the slots of a batch.

    ring_start, pending: (S,), int32.  slots: (B,), int32 or int64, distinct; -1 marks a padded row, which moves
    nothing.  tokens: T, new tokens a row in the step just run, 1 to window.  accepted: how many of them stay, 0 to T:
    one number for all rows, or (B,) of int32 or int64.  window: W.  ring_rows: R, at least W + T; unused with window 1.
    counts: (2,), int64; the rows that flushed in the step, and those that were pending before it, are added to it.

    The triton backend is one launch, which never waits for the host and allocates nothing. Raises ArgumentError where
    shapes, dtypes or numbers do not fit.
    """
    op, batch = "advance_trackers", slots.shape[0]
    expect_shape(
        op,
        ring_start=(ring_start, (pending.shape[0],)),
        slots=(slots, (batch,)),
        accepted=(accepted if isinstance(accepted, Tensor) else None, (batch,)),
        counts=(counts, (2,)),
    )
    expect_slots(op, slots=slots, accepted=accepted if isinstance(accepted, Tensor) else None)
    for name, tensor in {"ring_start": ring_start, "pending": pending}.items():
        expect(tensor.dtype == int32, op, f"{name} is {tensor.dtype}, expected torch.int32")
    if counts is not None:
        expect(counts.dtype == int64, op, f"counts is {counts.dtype}, expected torch.int64")
    expect(1 <= tokens <= window, op, f"tokens = {tokens}, expected 1 to window = {window}")
    if isinstance(accepted, int):
        expect(0 <= accepted <= tokens, op, f"accepted = {accepted}, expected 0 to tokens = {tokens}")
    enough = window == 1 or ring_rows >= window + tokens
    expect(enough, op, f"R = {ring_rows} ring rows, expected at least {window + tokens}")
    if window > 1 or counts is not None:
        implementation(op, backend)(ring_start, pending, slots, tokens, accepted, window, ring_rows, counts)
