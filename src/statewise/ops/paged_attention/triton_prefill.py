"""Chunks of prompts: a block of queries of one head in registers, keys and values by pieces from position 0 on."""

import triton
import triton.language as tl

from statewise.ops.paged_attention.triton_parts import attend_piece, load_piece
from statewise.ops.ssd_prefill.triton_kernels import find_block
from statewise.ops.triton_common import start


@triton.jit(do_not_specialize=["p_cu_seqlens", "p_tables", "p_starts", "sequences", "stride_table", "stride_entry"])
def prefill_kernel(
    p_q, p_k, p_v, p_cu_seqlens, p_tables, p_starts, p_out,
    sequences, scale, stride_q, stride_q_h, stride_out, stride_out_h, stride_block, stride_token, stride_head,
    stride_table, stride_entry,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Blocks late in a sequence, which have the most keys to read, start first."""
    start(USE_PDL, False)
    i_head = tl.program_id(0)
    i_last = tl.num_programs(1) - 1
    i_sequence, begin, end, i_block = find_block(p_cu_seqlens, i_last - tl.program_id(1), BLOCK_M, sequences)
    tokens, first = (end - begin).to(tl.int32), i_block.to(tl.int32) * BLOCK_M
    if first >= tokens:
        return
    before = tl.load(p_starts + i_sequence).to(tl.int32)
    o_m, o_d = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    o_pos = before + o_m
    m_q = (o_m < tokens)[:, None] & (o_d < D)[None, :]
    o_token = begin + o_m
    p_own = p_q + o_token[:, None] * stride_q + i_head * stride_q_h + o_d[None, :]
    b_q = tl.load(p_own, mask=m_q, other=0.0)
    p_table = p_tables + i_sequence.to(tl.int64) * stride_table
    p_k += (i_head // GROUP) * stride_head
    p_v += (i_head // GROUP) * stride_head

    b_sum = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    b_total = tl.zeros([BLOCK_M], tl.float32)
    b_top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    seen_by_all = (before + first + 1) // BLOCK_T * BLOCK_T
    last = before + tl.minimum(first + BLOCK_M, tokens)
    for t in tl.range(0, seen_by_all, BLOCK_T, num_stages=STAGES):
        o_t = t + tl.arange(0, BLOCK_T)
        b_k, b_v = load_piece(
            p_k, p_v, p_table, o_t, o_t, o_d, stride_block, stride_token, stride_entry, False, D, BLOCK_SIZE, BLOCK_D
        )  # fmt: skip
        b_sum, b_top, b_total = attend_piece(b_q, b_k, b_v, b_sum, b_top, b_total, o_t, scale, False, PRECISION)
    for t in tl.range(seen_by_all, last, BLOCK_T, num_stages=STAGES):
        o_t = t + tl.arange(0, BLOCK_T)
        b_k, b_v = load_piece(
            p_k, p_v, p_table, o_t, o_t < last, o_d, stride_block, stride_token, stride_entry,
            True, D, BLOCK_SIZE, BLOCK_D,
        )  # fmt: skip
        m_seen = o_t[None, :] <= o_pos[:, None]
        b_sum, b_top, b_total = attend_piece(b_q, b_k, b_v, b_sum, b_top, b_total, m_seen, scale, True, PRECISION)
    p_y = p_out + o_token[:, None] * stride_out + i_head * stride_out_h + o_d[None, :]
    tl.store(p_y, (b_sum / b_total[:, None]).to(p_out.dtype.element_ty), mask=m_q)
