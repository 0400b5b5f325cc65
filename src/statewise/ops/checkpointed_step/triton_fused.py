"""The checkpointed step in one kernel, for small batches: no second launch.

A program takes a row, a head and a tile of channels, and restores the state from the checkpoint and the ring with the
matrix units; what it does with the new token is then what the plain step does, without the write. The restoring needs
nothing that the token brings: with PREFETCH it is done while the kernel in front still runs. At larger batches the
products cost more than the second launch.
"""

import triton
import triton.language as tl

from statewise.ops.checkpointed_step.triton_parts import (
    add_products,
    new_place,
    ring_places,
    ring_weights,
    time_step,
)
from statewise.ops.triton_common import silu, start, wait
from statewise.ops.triton_rounding import as_written


@triton.jit(do_not_specialize=["rand_layer"])
def fused_kernel(
    p_x, p_dt, p_A, p_B, p_C, p_D, p_z, p_dt_bias, p_state, p_x_ring, p_B_ring, p_dt_ring,
    p_start, p_pending, p_read, p_write, p_out, p_rand_seed, dt_low, dt_high, rand_layer,
    stride_x_b, stride_x_h, stride_dt_b, stride_dt_h, stride_B_b, stride_B_g, stride_C_b, stride_C_g,
    stride_z_b, stride_z_h, stride_read, stride_write, stride_s_slot, stride_s_h, stride_s_p,
    stride_xr_slot, stride_xr_h, stride_xr_r,
    stride_Br_slot, stride_Br_g, stride_Br_r, stride_dtr_slot, stride_dtr_h, stride_o_b, stride_o_h,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr,
    HAS_SEED: tl.constexpr, USE_PDL: tl.constexpr, PREFETCH: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
    BF16_PARTS: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, PREFETCH)
    i_p, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_g = i_h // HEADS_PER_GROUP
    row = i_b.to(tl.int64)
    i_read, i_own = tl.load(p_read + row * stride_read).to(tl.int64), tl.load(p_write + row * stride_write).to(tl.int64)
    o_p, o_n = i_p * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
    m_p, m_n = o_p < P, o_n < N
    p_o = p_out + row * stride_o_b + i_h * stride_o_h + o_p
    if (i_read < 0) | (i_own < 0):
        if PREFETCH:
            wait(USE_PDL)
        tl.store(p_o, tl.zeros([BLOCK_P], p_out.dtype.element_ty), mask=m_p)
        return
    o_tile = i_h * stride_s_h + o_p[:, None] * stride_s_p + o_n[None, :]
    m_pn = m_p[:, None] & m_n[None, :]
    b_state = tl.load(p_state + i_read * stride_s_slot + o_tile, mask=m_pn, other=0.0).to(tl.float32)
    b_start, b_live = tl.load(p_start + i_own), tl.load(p_pending + i_own)
    o_place, m_w = ring_places(b_start, b_live, BLOCK_W, R)
    p_dtr = p_dt_ring + i_own * stride_dtr_slot + i_h * stride_dtr_h
    p_Br = p_B_ring + i_own * stride_Br_slot + i_g * stride_Br_g + o_n
    p_xr = p_x_ring + i_own * stride_xr_slot + i_h * stride_xr_h + o_p
    b_Bs = tl.load(p_Br[None, :] + o_place[:, None] * stride_Br_r, mask=m_w[:, None] & m_n[None, :], other=0.0)
    b_xs = tl.load(p_xr[None, :] + o_place[:, None] * stride_xr_r, mask=m_w[:, None] & m_p[None, :], other=0.0)
    b_A = tl.load(p_A + i_h).to(tl.float32)
    b_fold, b_past = ring_weights(p_dtr, b_A, b_start, b_live, BLOCK_W, R)
    b_weighted = tl.trans(b_xs.to(tl.float32) * b_fold[:, None])
    b_state = add_products(b_weighted, b_Bs, b_state * tl.exp(b_past), BF16_PARTS)
    if PREFETCH:
        wait(USE_PDL)

    b_x = tl.load(p_x + row * stride_x_b + i_h * stride_x_h + o_p, mask=m_p, other=0.0)
    b_B = tl.load(p_B + row * stride_B_b + i_g * stride_B_g + o_n, mask=m_n, other=0.0)
    b_C = tl.load(p_C + row * stride_C_b + i_g * stride_C_g + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_dt = time_step(p_dt + row * stride_dt_b, p_dt_bias, i_h, stride_dt_h, dt_low, dt_high, HAS_BIAS, HAS_LIMIT)
    b_new = b_dt * tl.sum(b_B.to(tl.float32) * b_C, axis=0)
    if HAS_D:
        b_new += tl.load(p_D + i_h).to(tl.float32)
    b_y = tl.sum(b_state * b_C[None, :], axis=1) * tl.exp(b_A * b_dt) + b_new * b_x.to(tl.float32)
    if HAS_Z:
        b_y *= silu(tl.load(p_z + row * stride_z_b + i_h * stride_z_h + o_p, mask=m_p, other=0.0).to(tl.float32))
    tl.store(p_o, b_y.to(p_out.dtype.element_ty), mask=m_p)

    o_new = new_place(b_start, b_live, R)
    tl.store(p_xr + o_new * stride_xr_r, b_x.to(p_x_ring.dtype.element_ty), mask=m_p)
    if i_p == 0:
        tl.store(p_dtr + o_new, b_dt)
        if i_h % HEADS_PER_GROUP == 0:
            tl.store(p_Br + o_new * stride_Br_r, b_B.to(p_B_ring.dtype.element_ty), mask=m_n)
    if b_live + 1 > W:
        dtype: tl.constexpr = p_state.dtype.element_ty
        b_written = as_written(b_state, i_h * P + o_p, 0, i_own, p_rand_seed, rand_layer, N, HAS_SEED, dtype)
        tl.store(p_state + i_own * stride_s_slot + o_tile, b_written, mask=m_pn)
