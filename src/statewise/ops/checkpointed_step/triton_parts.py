"""What the kernels of the checkpointed step share: the order of ring rows, their weights, folding them.

p_ is a pointer, b_ a block in registers, o_ offsets, m_ a mask, i_ an index.
"""

import triton
import triton.language as tl

from statewise.ops.triton_common import softplus
from statewise.ops.triton_rounding import as_written


@triton.jit
def ring_places(b_start, b_live, BLOCK_W: tl.constexpr, R: tl.constexpr):
    """Places of the pending rows, youngest first (no place: anything, below R), and which of them there are."""
    o_w = tl.arange(0, BLOCK_W)
    o_place = b_start + b_live - 1 - o_w
    return tl.where(o_place >= R, o_place - R, o_place), o_w < b_live


@triton.jit
def new_place(b_start, b_live, R: tl.constexpr):
    """Where the new row goes."""
    return tl.where(b_start + b_live >= R, b_start + b_live - R, b_start + b_live)


@triton.jit
def time_step(p_dt, p_dt_bias, o_h, stride_dt_h, dt_low, dt_high, HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr):
    """clamp(softplus(dt + bias)) of a head or of some heads, float32."""
    b_dt = tl.load(p_dt + o_h * stride_dt_h).to(tl.float32)
    if HAS_BIAS:
        b_dt += tl.load(p_dt_bias + o_h).to(tl.float32)
    b_dt = softplus(b_dt)
    if HAS_LIMIT:
        b_dt = tl.minimum(tl.maximum(b_dt, dt_low), dt_high)
    return b_dt


@triton.jit
def ring_weights(p_dt_ring, b_A, b_start, b_live, BLOCK_W: tl.constexpr, R: tl.constexpr):
    """(..., W): each pending row's weight in the state before the new token, youngest first; (...): the log of the
    checkpoint's. p_dt_ring, b_A: of a head or of some heads.

    A row decays by the steps of the rows younger than it. Those are summed on their own: the difference of two running
    sums would lose the digits that matter when both are large.
    """
    o_place, m_w = ring_places(b_start, b_live, BLOCK_W, R)
    o_younger = tl.where(o_place + 1 >= R, o_place + 1 - R, o_place + 1)
    m_not_first = m_w & (tl.arange(0, BLOCK_W) > 0)
    if p_dt_ring.type.is_block():
        p_dt_ring, o_place, o_younger = p_dt_ring[:, None], o_place[None, :], o_younger[None, :]
        b_A, m_w, m_not_first = b_A[:, None], m_w[None, :], m_not_first[None, :]
    b_dts = tl.load(p_dt_ring + o_place, mask=m_w, other=0.0)
    b_younger = tl.load(p_dt_ring + o_younger, mask=m_not_first, other=0.0)
    axis: tl.constexpr = len(b_dts.shape) - 1
    b_fold = tl.exp(b_A * tl.cumsum(b_younger, axis=axis)) * b_dts
    return b_fold, tl.sum(b_A * b_dts, axis=axis)


@triton.jit
def store_coefficients(p_mix, p_fold, o_out, b_fold, b_past, b_now, b_CB, b_new, is_full, BLOCK_W: tl.constexpr):
    """Write what `output_kernel` reads, of one row and some heads, each (heads, BLOCK_W + 2).

    mix: a weight for each pending row's x, then the new row's, then the checkpoint's. fold, of rows that flush: the
    same for the state that is written; the second to last is unused.
    b_now: the log of the new token's decay. b_CB: C . B of the pending rows. b_new: the weight of the new x.
    """
    o_hw = o_out[:, None] + tl.arange(0, BLOCK_W)[None, :]
    b_decay = tl.exp(b_now)
    tl.store(p_mix + o_hw, b_decay[:, None] * b_fold * b_CB[None, :])
    tl.store(p_mix + o_out + BLOCK_W, b_new)
    tl.store(p_mix + o_out + BLOCK_W + 1, tl.exp(b_past + b_now))
    if is_full:
        tl.store(p_fold + o_hw, b_fold)
        tl.store(p_fold + o_out + BLOCK_W + 1, tl.exp(b_past))


@triton.jit
def add_products(b_weighted, b_Bs, b_state, BF16_PARTS: tl.constexpr):
    """state + weighted @ Bs, to the precision of float32 or of BF16_PARTS bfloat16 numbers.

    b_weighted: (BLOCK_P, BLOCK_W), x times its weight. b_Bs: (BLOCK_W, columns), exact in bfloat16 if BF16_PARTS > 0:
    x times its weight is then a sum of that many bfloat16 parts, 8 bits each. Otherwise three TF32 products.
    """
    if BF16_PARTS > 0:
        b_part = b_weighted.to(tl.bfloat16)
        b_state = tl.dot(b_part, b_Bs, b_state)
        b_rest = b_weighted - b_part.to(tl.float32)
        for _ in tl.static_range(BF16_PARTS - 1):
            b_part = b_rest.to(tl.bfloat16)
            b_state = tl.dot(b_part, b_Bs, b_state)
            b_rest -= b_part.to(tl.float32)
    else:
        b_state = tl.dot(b_weighted, b_Bs.to(tl.float32), b_state, input_precision="tf32x3")
    return b_state


@triton.jit
def fold_rows(
    p_from, p_to, p_Bs, b_weighted, b_decay, m_w, m_p, b_row, i_slot, p_rand_seed, rand_layer,
    N: tl.constexpr, HAS_SEED: tl.constexpr, BF16_PARTS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """to = decay * from + weighted @ Bs, BLOCK_C state channels at a time.

    p_from, p_to: (BLOCK_P, 1), the first channel of each row of the tile; they may be the same. p_Bs: (BLOCK_W, 1),
    likewise of each ring row. b_weighted: (BLOCK_P, BLOCK_W), x times its weight. The tile is read again, from the L2
    cache where it has just been: kept in registers it would cost every program of the kernel what one in W uses.
    b_row to HAS_SEED: as `statewise.ops.triton_rounding.as_written` takes them.
    """
    for i_c in range(0, N, BLOCK_C):
        o_c = i_c + tl.arange(0, BLOCK_C)
        m_c = (o_c < N)[None, :]
        b_Bs = tl.load(p_Bs + o_c[None, :], mask=m_w[:, None] & m_c, other=0.0)
        b_state = tl.load(p_from + o_c[None, :], mask=m_p[:, None] & m_c, other=0.0).to(tl.float32) * b_decay
        b_state = add_products(b_weighted, b_Bs, b_state, BF16_PARTS)
        b_new = as_written(b_state, b_row, i_c, i_slot, p_rand_seed, rand_layer, N, HAS_SEED, p_to.dtype.element_ty)
        tl.store(p_to + o_c[None, :], b_new, mask=m_p[:, None] & m_c)
