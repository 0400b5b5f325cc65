"""The trackers on an NVIDIA GPU: a thread a row."""

import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.triton_common import cdiv, expect_last_contiguous, next_power_of_2


@triton.jit(do_not_specialize=["rows", "tokens", "accepted"])
def advance_trackers_kernel(
    p_ring_start, p_pending, p_slots, p_accepted, p_counts, rows, tokens, accepted, window, ring_rows,
    HAS_ACCEPTED: tl.constexpr, HAS_COUNTS: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    m_row = o_row < rows
    b_slot = tl.load(p_slots + o_row, mask=m_row, other=-1).to(tl.int64)
    m_live = b_slot >= 0
    b_start = tl.load(p_ring_start + b_slot, mask=m_live, other=0)
    b_pending = tl.load(p_pending + b_slot, mask=m_live, other=0)
    b_full = (b_pending + tokens > window) | (window == 1)
    if HAS_COUNTS:
        tl.atomic_add(p_counts, tl.sum((m_live & b_full).to(tl.int64), axis=0))
        tl.atomic_add(p_counts + 1, tl.sum(b_pending.to(tl.int64), axis=0))
    if window == 1:
        return
    b_start = tl.where(b_full, (b_start + b_pending) % ring_rows, b_start)
    b_pending = tl.where(b_full, 0, b_pending)
    if HAS_ACCEPTED:
        b_pending += tl.load(p_accepted + o_row, mask=m_live, other=0).to(tl.int32)
    else:
        b_pending += accepted
    tl.debug_barrier()  # threads that hold the same row have all read it
    tl.store(p_ring_start + b_slot, b_start, mask=m_live)
    tl.store(p_pending + b_slot, b_pending, mask=m_live)


def launch_parameters(rows: int) -> tuple[int, int]:
    """(BLOCK_B, num_warps): one row a thread."""
    block = min(128, max(32, next_power_of_2(rows)))
    return block, min(4, block // 32)


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
    each = accepted if isinstance(accepted, Tensor) else None
    expect_last_contiguous("advance_trackers", ring_start=ring_start, pending=pending, slots=slots, accepted=each)
    rows = slots.shape[0]
    if rows == 0:
        return
    block, num_warps = launch_parameters(rows)
    advance_trackers_kernel[(cdiv(rows, block),)](
        p_ring_start=ring_start, p_pending=pending, p_slots=slots, p_accepted=each, p_counts=counts, rows=rows,
        tokens=tokens,
        accepted=0 if isinstance(accepted, Tensor) else accepted, window=window, ring_rows=ring_rows,
        HAS_ACCEPTED=each is not None, HAS_COUNTS=counts is not None, BLOCK_B=block, num_warps=num_warps,
    )  # fmt: skip
