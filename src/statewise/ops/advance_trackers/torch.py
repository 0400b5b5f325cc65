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
    counts: Tensor | None,
) -> None:
    rows = (slots >= 0).nonzero().squeeze(1)
    own = slots[rows].long()
    start, live = ring_start[own], pending[own]
    stay = accepted[rows].to(live.dtype) if isinstance(accepted, Tensor) else accepted
    flush = live + tokens > window if window > 1 else live >= 0
    if counts is not None:
        counts += torch.stack([flush.sum(), live.sum()])
    if window == 1:
        return
    ring_start[own] = torch.where(flush, (start + live) % ring_rows, start)
    pending[own] = torch.where(flush, 0, live) + stay
