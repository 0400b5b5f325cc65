"""The trackers on an NVIDIA GPU: one program, so that a running count puts the rows that flush in order."""

import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.triton_common import expect_last_contiguous


@triton.jit(do_not_specialize=["rows", "tokens", "accepted", "next_tokens"])
def advance_trackers_kernel(
    p_ring_start, p_pending, p_slots, p_accepted, p_flush_rows, p_flush_count,
    rows, tokens, accepted, window, ring_rows, next_tokens,
    MOVES: tl.constexpr, HAS_ACCEPTED: tl.constexpr, HAS_LIST: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    o_b = tl.arange(0, BLOCK_B)
    count = tl.full((), 0, tl.int32)
    for i_block in range(BLOCKS):
        o_row = i_block * BLOCK_B + o_b
        m_row = o_row < rows
        b_slot = tl.load(p_slots + o_row, mask=m_row, other=-1).to(tl.int64)
        m_live = b_slot >= 0
        b_flush = m_live
        if MOVES:
            b_start = tl.load(p_ring_start + b_slot, mask=m_live, other=0)
            b_pending = tl.load(p_pending + b_slot, mask=m_live, other=0)
            b_full = b_pending + tokens > window
            b_start = tl.where(b_full, (b_start + b_pending) % ring_rows, b_start)
            b_pending = tl.where(b_full, 0, b_pending)
            if HAS_ACCEPTED:
                b_pending += tl.load(p_accepted + o_row, mask=m_live, other=0).to(tl.int32)
            else:
                b_pending += accepted
            tl.debug_barrier()  # threads that hold the same row have all read it
            tl.store(p_ring_start + b_slot, b_start, mask=m_live)
            tl.store(p_pending + b_slot, b_pending, mask=m_live)
            b_flush = m_live & (b_pending + next_tokens > window)
        if HAS_LIST:
            b_one = b_flush.to(tl.int32)
            tl.store(p_flush_rows + count + tl.cumsum(b_one, axis=0) - 1, o_row, mask=b_flush)
            count += tl.sum(b_one, axis=0)
    if HAS_LIST:
        tl.store(p_flush_count, count)
        for i_block in range(BLOCKS):
            o_row = i_block * BLOCK_B + o_b
            tl.store(p_flush_rows + o_row, tl.full((BLOCK_B,), -1, tl.int32), mask=(o_row >= count) & (o_row < rows))


def launch_parameters(rows: int) -> tuple[int, int]:
    """(BLOCK_B, num_warps): one row a thread up to 128 rows, then up to 8."""
    block = min(1024, max(32, triton.next_power_of_2(rows)))
    return block, min(4, block // 32)


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
    each = accepted if isinstance(accepted, Tensor) else None
    expect_last_contiguous(
        "advance_trackers", ring_start=ring_start, pending=pending, slots=slots, accepted=each, flush_rows=flush_rows
    )
    if window == 1 and flush_rows is None:
        return
    rows = slots.shape[0]
    block, num_warps = launch_parameters(rows)
    advance_trackers_kernel[(1,)](
        p_ring_start=ring_start, p_pending=pending, p_slots=slots, p_accepted=each,
        p_flush_rows=flush_rows, p_flush_count=flush_count,
        rows=rows, tokens=tokens, accepted=0 if isinstance(accepted, Tensor) else accepted,
        window=window, ring_rows=ring_rows, next_tokens=next_tokens,
        MOVES=window > 1, HAS_ACCEPTED=each is not None, HAS_LIST=flush_rows is not None,
        BLOCKS=triton.cdiv(rows, block), BLOCK_B=block, num_warps=num_warps,
    )  # fmt: skip
