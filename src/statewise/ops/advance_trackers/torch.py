"""The trackers of all rows at once."""

import torch
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
    rows = (slots >= 0).nonzero().squeeze(1)
    own = slots[rows].long()
    if window > 1:
        start, live = ring_start[own], pending[own]
        stay = accepted[rows].to(live.dtype) if isinstance(accepted, Tensor) else accepted
        flush = live + tokens > window
        ring_start[own] = torch.where(flush, (start + live) % ring_rows, start)
        pending[own] = torch.where(flush, 0, live) + stay
    if flush_rows is not None and flush_count is not None:
        flushing = rows if window == 1 else rows[pending[own] + next_tokens > window]
        flush_rows.fill_(-1)
        flush_rows[: len(flushing)] = flushing.to(flush_rows.dtype)
        flush_count.fill_(len(flushing))
