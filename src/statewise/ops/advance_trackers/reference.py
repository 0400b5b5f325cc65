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
    counts: Tensor | None,
) -> None:
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        start, live = int(ring_start[slot]), int(pending[slot])
        if counts is not None:
            counts[0] += live + tokens > window or window == 1
            counts[1] += live
        if window == 1:
            continue
        if live + tokens > window:
            start, live = (start + live) % ring_rows, 0
        stay = int(accepted[row]) if isinstance(accepted, Tensor) else accepted
        ring_start[slot], pending[slot] = start, live + stay
