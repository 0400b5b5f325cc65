"""The trackers, one row at a time."""

from torch import Tensor


def advance_trackers(
    ring_start: Tensor,
    pending: Tensor,
    slots: Tensor,
    tokens: int,
    accepted: int | Tensor,
    window: int,
    ring_rows: int,
    next_tokens: int,
    flush_rows: Tensor | None,
    flush_count: Tensor | None,
) -> None:
    flushing = []
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        start, live = int(ring_start[slot]), int(pending[slot])
        if window > 1:
            if live + tokens > window:
                start, live = (start + live) % ring_rows, 0
            live += int(accepted[row]) if isinstance(accepted, Tensor) else accepted
            ring_start[slot], pending[slot] = start, live
        if window == 1 or live + next_tokens > window:
            flushing.append(row)
    if flush_rows is not None and flush_count is not None:
        for row in range(len(slots)):
            flush_rows[row] = flushing[row] if row < len(flushing) else -1
        flush_count[0] = len(flushing)
