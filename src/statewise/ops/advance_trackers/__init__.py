"""Move the ring trackers after a step, once for all layers, and list the rows that flush at the next one."""

from torch import Tensor, int32  # a name `torch` here would become the backend of that name once it is imported

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
    next_tokens: int | None = None,
    flush_rows: Tensor | None = None,
    flush_count: Tensor | None = None,
    backend: str = "torch",
) -> None:
    """Move ``ring_start`` and ``pending`` of the rows' slots past a step of ``tokens`` new tokens, in place.

        pending + tokens > window:   ring_start = (ring_start + pending) % ring_rows;  pending = accepted
        otherwise:                   pending += accepted
        window 1 (the plain step):   neither moves

    That is `statewise.cache.window.advance`. ``flush_rows`` and ``flush_count``, given together, take the rows that
    flush at the next step, if it has the same rows: those with pending + next_tokens > window; with window 1, all.

    ring_start, pending: (S,), int32.  slots: (B,), int32 or int64, distinct; -1 marks a padded row: it moves nothing
    and never flushes.
    tokens: T, new tokens a row in the step just run, 1 to window.  accepted: how many of them stay, 0 to T: one number
    for all rows, or (B,) of int32 or int64.  window: W.  ring_rows: R, at least W + T; not used with window 1.
    next_tokens: new tokens a row in the next step, 1 to window; None: as many as in this one.
    flush_rows: (B,), int32: row numbers (places in ``slots``), ascending, then -1.  flush_count: (1,), int32: how many.

    The triton backend is one launch of one program, so the list comes out in the same order every time; it never waits
    for the host, and allocates nothing. Raises ArgumentError where shapes, dtypes or numbers do not fit.
    """
    op, batch = "advance_trackers", slots.shape[0]
    next_tokens = tokens if next_tokens is None else next_tokens
    expect_shape(
        op,
        ring_start=(ring_start, (pending.shape[0],)),
        slots=(slots, (batch,)),
        accepted=(accepted if isinstance(accepted, Tensor) else None, (batch,)),
        flush_rows=(flush_rows, (batch,)),
        flush_count=(flush_count, (1,)),
    )
    expect_slots(op, slots=slots, accepted=accepted if isinstance(accepted, Tensor) else None)
    owned = {"ring_start": ring_start, "pending": pending, "flush_rows": flush_rows, "flush_count": flush_count}
    for name, tensor in owned.items():
        if tensor is not None:
            expect(tensor.dtype == int32, op, f"{name} is {tensor.dtype}, expected torch.int32")
    expect((flush_rows is None) == (flush_count is None), op, "flush_rows and flush_count are given together")
    for name, count in (("tokens", tokens), ("next_tokens", next_tokens)):
        expect(1 <= count <= window, op, f"{name} = {count}, expected 1 to window = {window}")
    if isinstance(accepted, int):
        expect(0 <= accepted <= tokens, op, f"accepted = {accepted}, expected 0 to tokens = {tokens}")
    enough = window == 1 or ring_rows >= window + tokens
    expect(enough, op, f"R = {ring_rows} ring rows, expected at least {window + tokens}")
    run = implementation(op, backend)
    run(ring_start, pending, slots, tokens, accepted, window, ring_rows, next_tokens, flush_rows, flush_count)
