"""The first launch of a mixer's step: the convolution of the new token, its ring rows, and the coefficients.

A row has one program a group and some for the channels of x. A group's program convolves the group's B and C, which
all of the group's heads share, and writes what `statewise.ops.checkpointed_step.triton_split.output_kernel` reads. x
goes to the ring alone: the output kernel reads it there.
"""

import triton
import triton.language as tl

from statewise.ops.causal_conv.triton import convolve, load_taps
from statewise.ops.checkpointed_step.triton_parts import (
    new_place,
    ring_places,
    ring_weights,
    store_coefficients,
    time_step,
)
from statewise.ops.triton_common import silu, start, wait


@triton.jit
def append_kernel(
    p_xBC, p_dt, p_weight, p_bias, p_window, p_A, p_D, p_dt_bias, p_x_ring, p_B_ring, p_dt_ring,
    p_start, p_pending, p_read, p_write, p_C, p_mix, p_fold, dt_low, dt_high,
    stride_xBC, stride_C_b, stride_dt_b, stride_dt_h, stride_w_c, stride_w_k, stride_cw_slot, stride_cw_c, stride_cw_k,
    stride_read, stride_write, stride_xr_slot, stride_xr_h, stride_xr_r, stride_Br_slot, stride_Br_g, stride_Br_r,
    stride_dtr_slot, stride_dtr_h,
    H: tl.constexpr, P: tl.constexpr, N: tl.constexpr, G: tl.constexpr, K: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, CONV_BIAS: tl.constexpr, HAS_D: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_LIMIT: tl.constexpr, USE_PDL: tl.constexpr, PREFETCH: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program i of a row is group i's, or the one of block i - G of the channels of x."""
    start(USE_PDL, PREFETCH)
    i, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_own = tl.load(p_write + row * stride_write).to(tl.int64)
    if (i_own < 0) | (tl.load(p_read + row * stride_read) < 0):
        if PREFETCH:
            wait(USE_PDL)
        return
    b_start, b_live = tl.load(p_start + i_own), tl.load(p_pending + i_own)
    o_new = new_place(b_start, b_live, R)
    p_window += i_own * stride_cw_slot
    p_in = p_xBC + row * stride_xBC
    if i >= G:
        o_c = (i - G) * BLOCK_X + tl.arange(0, BLOCK_X)
        m_c = o_c < H * P
        past, weights = load_taps(
            p_window, p_weight, o_c, m_c, stride_cw_c, stride_cw_k, stride_w_c, stride_w_k, K
        )  # fmt: skip
        if PREFETCH:
            wait(USE_PDL)
        b_new = tl.load(p_in + o_c, mask=m_c, other=0.0)
        b_x = silu(
            convolve(past, weights, b_new, p_window, p_bias, o_c, m_c, m_c, stride_cw_c, stride_cw_k, K, CONV_BIAS)
        )  # fmt: skip
        p_xr = p_x_ring + i_own * stride_xr_slot + (o_c // P) * stride_xr_h + o_c % P
        tl.store(p_xr + o_new * stride_xr_r, b_x.to(p_x_ring.dtype.element_ty), mask=m_c)
        return

    HEADS_PER_GROUP: tl.constexpr = H // G
    o_h = i * HEADS_PER_GROUP + tl.minimum(tl.arange(0, BLOCK_H), HEADS_PER_GROUP - 1)  # the last more than once
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < N
    o_B = H * P + i * N + o_n
    o_C = o_B + G * N
    B_past, B_weights = load_taps(
        p_window, p_weight, o_B, m_n, stride_cw_c, stride_cw_k, stride_w_c, stride_w_k, K
    )  # fmt: skip
    C_past, C_weights = load_taps(
        p_window, p_weight, o_C, m_n, stride_cw_c, stride_cw_k, stride_w_c, stride_w_k, K
    )  # fmt: skip
    o_place, m_w = ring_places(b_start, b_live, BLOCK_W, R)
    p_Br = p_B_ring + i_own * stride_Br_slot + i * stride_Br_g + o_n
    b_old = tl.load(p_Br[None, :] + o_place[:, None] * stride_Br_r, mask=m_w[:, None] & m_n[None, :], other=0.0)
    p_dtr = p_dt_ring + i_own * stride_dtr_slot + o_h * stride_dtr_h
    b_A = tl.load(p_A + o_h).to(tl.float32)
    b_fold, b_past = ring_weights(p_dtr, b_A, b_start, b_live, BLOCK_W, R)
    if PREFETCH:
        wait(USE_PDL)
    b_B, b_C = tl.load(p_in + o_B, mask=m_n, other=0.0), tl.load(p_in + o_C, mask=m_n, other=0.0)
    dtype: tl.constexpr = p_C.dtype.element_ty  # B and C are rounded as the convolution op rounds them
    b_B = silu(
        convolve(B_past, B_weights, b_B, p_window, p_bias, o_B, m_n, m_n, stride_cw_c, stride_cw_k, K, CONV_BIAS)
    ).to(dtype)  # fmt: skip
    b_C = silu(
        convolve(C_past, C_weights, b_C, p_window, p_bias, o_C, m_n, m_n, stride_cw_c, stride_cw_k, K, CONV_BIAS)
    ).to(dtype)  # fmt: skip
    tl.store(p_Br + o_new * stride_Br_r, b_B.to(p_B_ring.dtype.element_ty), mask=m_n)
    tl.store(p_C + row * stride_C_b + i * N + o_n, b_C, mask=m_n)
    b_C = b_C.to(tl.float32)
    b_CB = tl.sum(b_old.to(tl.float32) * b_C[None, :], axis=1)
    b_dt = time_step(p_dt + row * stride_dt_b, p_dt_bias, o_h, stride_dt_h, dt_low, dt_high, HAS_BIAS, HAS_LIMIT)
    b_new = b_dt * tl.sum(b_B.to(tl.float32) * b_C, axis=0)
    if HAS_D:
        b_new += tl.load(p_D + o_h).to(tl.float32)
    o_out = (row * H + o_h) * (BLOCK_W + 2)
    store_coefficients(p_mix, p_fold, o_out, b_fold, b_past, b_A * b_dt, b_CB, b_new, b_live + 1 > W, BLOCK_W)
    tl.store(p_dtr + o_new, b_dt)
