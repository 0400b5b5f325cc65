"""One token a row: partial sums over splits of each row's tokens, and their combination.

How a row is split depends on its length alone. Who computes a split depends on the launch: programs that stay take
splits from a list, so that there are no programs for the tokens that a table could hold and does not.
"""

import triton
import triton.language as tl

from statewise.ops.paged_attention.scratch import MAX_SPLITS, PIECE, SPLIT
from statewise.ops.paged_attention.triton_parts import attend_piece, load_piece
from statewise.ops.triton_common import start

_SPLIT, _PIECE, _MAX_SPLITS = tl.constexpr(SPLIT), tl.constexpr(PIECE), tl.constexpr(MAX_SPLITS)


@triton.jit
def split_length(length):
    """Tokens of each of a row's splits but the last, which may be shorter."""
    splits = tl.minimum(tl.maximum(tl.cdiv(length, _SPLIT), 1), _MAX_SPLITS)
    return tl.maximum(tl.cdiv(tl.cdiv(length, splits), _PIECE), 1) * _PIECE


@triton.jit(do_not_specialize=["p_tables", "p_lengths", "rows", "capacity", "splits", "stride_table", "stride_entry"])
def split_kernel(
    p_q, p_k, p_v, p_tables, p_lengths, p_partial, p_stats,
    rows, capacity, splits, scale, stride_q, stride_q_h, stride_block, stride_token, stride_head, stride_table,
    stride_entry,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """An item is a split of a row for one KV head and all query heads that read it. A program takes every n-th."""
    start(USE_PDL, False)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    o_row = tl.arange(0, BLOCK_ROWS)
    b_length = tl.load(p_lengths + o_row, mask=o_row < rows, other=0).to(tl.int32)
    b_length = tl.minimum(b_length, capacity)
    b_ends = tl.cumsum(tl.cdiv(b_length, split_length(b_length)), axis=0)
    o_h, o_d = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    m_h, m_d = o_h < GROUP, o_d < D
    for item in range(tl.program_id(0), tl.max(b_ends, axis=0) * KV_HEADS, tl.num_programs(0)):
        i_kv, i_item = item % KV_HEADS, item // KV_HEADS
        is_before = b_ends <= i_item
        row = tl.sum(is_before.to(tl.int32), axis=0)
        i_split = i_item - tl.max(tl.where(is_before, b_ends, 0), axis=0)
        length = tl.minimum(tl.load(p_lengths + row).to(tl.int32), capacity)
        size = split_length(length)
        end = tl.minimum((i_split + 1) * size, length)
        row = row.to(tl.int64)
        o_head = i_kv * GROUP + o_h
        p_own = p_q + row * stride_q + o_head[:, None] * stride_q_h + o_d[None, :]
        b_q = tl.load(p_own, mask=m_h[:, None] & m_d[None, :], other=0.0)
        p_table = p_tables + row * stride_table

        b_sum = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        b_total = tl.zeros([BLOCK_H], tl.float32)
        b_top = tl.full([BLOCK_H], float("-inf"), tl.float32)
        for t in tl.range(i_split * size, end, BLOCK_T, num_stages=STAGES):
            o_t = t + tl.arange(0, BLOCK_T)
            m_t = o_t < end
            b_k, b_v = load_piece(
                p_k + i_kv * stride_head, p_v + i_kv * stride_head, p_table, o_t, m_t, o_d, stride_block, stride_token,
                stride_entry, True, D, BLOCK_SIZE, BLOCK_D,
            )  # fmt: skip
            b_sum, b_top, b_total = attend_piece(
                b_q, b_k, b_v, b_sum, b_top, b_total, m_t[None, :], scale, True, PRECISION
            )  # fmt: skip
        o_part = (row * HEADS + o_head) * splits + i_split
        tl.store(p_partial + o_part[:, None] * D + o_d[None, :], b_sum, mask=m_h[:, None] & m_d[None, :])
        tl.store(p_stats + o_part * 2, b_top, mask=m_h)
        tl.store(p_stats + o_part * 2 + 1, b_total, mask=m_h)


@triton.jit(do_not_specialize=["p_lengths", "capacity", "splits"])
def combine_kernel(
    p_partial, p_stats, p_lengths, p_out, capacity, splits, stride_out, stride_out_h,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """The weighted mean over the splits of some heads of a row, one by one. Zeros for a row without tokens."""
    start(USE_PDL, False)
    row = tl.program_id(1).to(tl.int64)
    o_h, o_s, o_d = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, _MAX_SPLITS), tl.arange(0, BLOCK_D)
    m_h, m_hd = o_h < HEADS, (o_h < HEADS)[:, None] & (o_d < D)[None, :]
    length = tl.minimum(tl.load(p_lengths + row).to(tl.int32), capacity)
    count = tl.cdiv(length, split_length(length))
    o_first = (row * HEADS + o_h) * splits
    m_stats = m_h[:, None] & (o_s < count)[None, :]
    b_top = tl.load(p_stats + (o_first[:, None] + o_s[None, :]) * 2, mask=m_stats, other=float("-inf"))
    b_total = tl.load(p_stats + (o_first[:, None] + o_s[None, :]) * 2 + 1, mask=m_stats, other=0.0)
    b_max = tl.where(m_h & (length > 0), tl.max(b_top, axis=1), 0.0)
    b_total = tl.sum(tl.exp2(b_top - b_max[:, None]) * b_total, axis=1)
    b_y = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for i_split in tl.range(0, count, num_stages=3):
        b_part = tl.load(p_partial + (o_first + i_split)[:, None] * D + o_d[None, :], mask=m_hd, other=0.0)
        b_weight = tl.exp2(tl.load(p_stats + (o_first + i_split) * 2, mask=m_h, other=float("-inf")) - b_max)
        b_y = tl.fma(b_part, tl.broadcast_to(b_weight[:, None], [BLOCK_H, BLOCK_D]), b_y)
    b_y /= tl.where(m_h & (length > 0), b_total, 1.0)[:, None]
    p_y = p_out + row * stride_out + o_h[:, None] * stride_out_h + o_d[None, :]
    tl.store(p_y, b_y.to(p_out.dtype.element_ty), mask=m_hd)
