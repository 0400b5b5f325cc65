"""The ring arithmetic as pure functions. They work on ints and on int tensors alike, and own nothing.

A slot has two trackers: ``start``, the ring place of the oldest pending row, and ``pending``, how many rows are
live. A step of T new tokens with window W flushes where ``pending + T > W``: the pending rows go into the
checkpoint, and the new rows alone are pending. W = 1 is the plain step, which writes at every token, without a ring.
"""

from typing import TypeVar

import torch
from torch import Tensor

Count = TypeVar("Count", int, Tensor)


def ring_rows(window: int, tokens: int = 1) -> int:
    """R: the ring rows that a slot needs so that ``tokens`` new rows never meet a live one. 0 for the plain step."""
    return 0 if window == 1 else window + tokens


def flushes(pending: Count, tokens: int, window: int) -> Count | bool | Tensor:
    """Whether a step of ``tokens`` new tokens writes the state. With window 1 every step does."""
    return pending + tokens > window if window > 1 else pending >= 0


def advance(
    start: Tensor, pending: Tensor, accepted: Tensor | int, tokens: int, window: int, rows: int
) -> tuple[Tensor, Tensor]:
    """The trackers after a step of ``tokens`` new tokens, of which ``accepted`` stay. start, pending: (B,); rows: R."""
    if window == 1:
        return start, pending
    flush = pending + tokens > window
    start = torch.where(flush, (start + pending) % rows, start)
    return start, torch.where(flush, 0, pending) + accepted


def predicted_writes(steps: int, window: int) -> int:
    """State writes in ``steps`` one-token steps after a prefill: all with window 1, else at W + 1, 2 W + 1, ..."""
    if window == 1:
        return steps
    return max(0, steps - 1) // window


def predicted_trackers(steps: int, window: int) -> tuple[int, int]:
    """``start`` and ``pending`` after ``steps`` one-token steps after a prefill; they do not move with window 1."""
    if window == 1 or steps == 0:
        return 0, 0
    flushed, rest = divmod(steps - 1, window)
    return flushed * window % ring_rows(window), rest + 1


def predicted_replays(steps: int, window: int) -> int:
    """Ring rows read in ``steps`` one-token steps after a prefill: each reads what was pending before it."""
    if window == 1 or steps == 0:
        return 0
    cycles, rest = divmod(steps - 1, window)
    return cycles * window * (window + 1) // 2 + rest * (rest + 1) // 2
