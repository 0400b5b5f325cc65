"""What the two attention kernels share: the loads of a piece, and its part of the running softmax."""

import triton
import triton.language as tl


@triton.jit
def load_piece(
    p_k, p_v, p_table, o_t, m_t, o_d, stride_block, stride_token, stride_entry,
    MASKED: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Keys and values of tokens ``o_t`` of a row, zeros where m_t is not set; without MASKED all of them are there."""
    m_entry = m_t if MASKED else None
    b_block = tl.load(p_table + (o_t // BLOCK_SIZE) * stride_entry, mask=m_entry).to(tl.int64)
    o_token = b_block * stride_block + (o_t % BLOCK_SIZE) * stride_token
    o_kv = o_token[:, None] + o_d[None, :]
    if MASKED:
        m_kv = m_t[:, None] & (o_d < D)[None, :]
    else:
        m_kv = (o_t >= 0)[:, None] & (o_d < D)[None, :]
    return tl.load(p_k + o_kv, mask=m_kv, other=0.0), tl.load(p_v + o_kv, mask=m_kv, other=0.0)


@triton.jit
def attend_piece(
    b_q, b_k, b_v, b_sum, b_top, b_total, m_seen, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Add a piece of tokens to the sums. scale includes log2(e): powers of two from here on.

    Products and sums are the same, bit for bit, with and without a mask, and a piece of which nothing is seen changes
    nothing: b_top, already scaled, and so its decay of exactly 1, and every fused multiply-add is written as such.
    """
    b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    if MASKED:
        b_s = tl.where(m_seen, b_s, float("-inf"))
    b_new = tl.maximum(b_top, tl.max(b_s, axis=1) * scale)
    b_p = tl.exp2(tl.fma(b_s, scale, -b_new[:, None]))
    b_decay = tl.exp2(b_top - b_new)
    b_total = tl.fma(b_total, b_decay, tl.sum(b_p, axis=1))
    b_sum = tl.dot(b_p.to(b_v.dtype), b_v, b_sum * b_decay[:, None], input_precision=PRECISION)
    return b_sum, b_new, b_total
