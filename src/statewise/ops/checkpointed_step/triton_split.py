"""The checkpointed step in two kernels: coefficients, then one that reads the state.

The first has a program a (row, group): the products C . B_j of the ring rows are the same for all heads of a group. It
writes one coefficient a head and ring row, so that the second kernel is a state read and two small products. The second
is launched as the first one's programmatic dependent: it fetches its tile of the state while the first still runs.
"""

import triton
import triton.language as tl

from statewise.ops.checkpointed_step.triton_parts import (
    fold_rows,
    new_place,
    ring_places,
    ring_weights,
    store_coefficients,
    time_step,
)
from statewise.ops.triton_common import INTERPRETED, silu, start, wait

if not INTERPRETED:
    from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def coefficients_kernel(
    p_dt, p_A, p_B, p_C, p_D, p_dt_bias, p_B_ring, p_dt_ring, p_start, p_pending, p_read, p_write, p_mix, p_fold,
    dt_low, dt_high,
    stride_dt_b, stride_dt_h, stride_B_b, stride_B_g, stride_C_b, stride_C_g, stride_read, stride_write,
    stride_Br_slot, stride_Br_g, stride_Br_r, stride_dtr_slot, stride_dtr_h,
    H, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    HAS_D: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr,
    USE_PDL: tl.constexpr, PREFETCH: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """One program some heads of a (row, group). Appends B and dt to the rings. What it writes: `store_coefficients`."""
    start(USE_PDL, PREFETCH)
    i_s, i_g, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = i_b.to(tl.int64)
    i_own = tl.load(p_write + row * stride_write).to(tl.int64)
    if (i_own < 0) | (tl.load(p_read + row * stride_read) < 0):
        if PREFETCH:
            wait(USE_PDL)
        return
    b_start, b_live = tl.load(p_start + i_own), tl.load(p_pending + i_own)
    o_n = tl.arange(0, BLOCK_N)
    o_k = tl.minimum(i_s * BLOCK_H + tl.arange(0, BLOCK_H), HEADS_PER_GROUP - 1)  # the last head more than once
    o_h = i_g * HEADS_PER_GROUP + o_k
    m_n = o_n < N
    o_place, m_w = ring_places(b_start, b_live, BLOCK_W, R)
    p_Br = p_B_ring + i_own * stride_Br_slot + i_g * stride_Br_g + o_n
    p_dtr = p_dt_ring + i_own * stride_dtr_slot + o_h * stride_dtr_h
    b_old = tl.load(p_Br[None, :] + o_place[:, None] * stride_Br_r, mask=m_w[:, None] & m_n[None, :], other=0.0)
    b_A = tl.load(p_A + o_h).to(tl.float32)
    b_fold, b_past = ring_weights(p_dtr, b_A, b_start, b_live, BLOCK_W, R)
    if PREFETCH:
        wait(USE_PDL)

    b_C = tl.load(p_C + row * stride_C_b + i_g * stride_C_g + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_B = tl.load(p_B + row * stride_B_b + i_g * stride_B_g + o_n, mask=m_n, other=0.0)
    b_dt = time_step(p_dt + row * stride_dt_b, p_dt_bias, o_h, stride_dt_h, dt_low, dt_high, HAS_BIAS, HAS_LIMIT)
    b_CB = tl.sum(b_old.to(tl.float32) * b_C[None, :], axis=1)
    b_new = b_dt * tl.sum(b_B.to(tl.float32) * b_C, axis=0)
    if HAS_D:
        b_new += tl.load(p_D + o_h).to(tl.float32)
    o_out = (row * H + o_h) * (BLOCK_W + 2)
    store_coefficients(
        p_mix, p_fold, o_out, b_fold, b_past, b_A * b_dt, b_CB, b_new, b_live + 1 > W, BLOCK_W
    )  # fmt: skip
    o_new = new_place(b_start, b_live, R)
    tl.store(p_dtr + o_new, b_dt)
    if i_s == 0:
        tl.store(p_Br + o_new * stride_Br_r, b_B.to(p_B_ring.dtype.element_ty), mask=m_n)


@triton.jit(do_not_specialize=["rand_layer"])
def output_kernel(
    p_x, p_B_ring, p_C, p_z, p_state, p_x_ring, p_start, p_pending, p_read, p_write, p_mix, p_fold, p_out, p_rand_seed,
    rand_layer, stride_x_b, stride_x_h, stride_C_b, stride_C_g, stride_z_b, stride_z_h, stride_read, stride_write,
    stride_s_slot, stride_s_h, stride_s_p, stride_xr_slot, stride_xr_h, stride_xr_r,
    stride_Br_slot, stride_Br_g, stride_Br_r, stride_o_b, stride_o_h,
    H, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    HAS_Z: tl.constexpr, HAS_SEED: tl.constexpr, X_IN_RING: tl.constexpr, USE_PDL: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
    BF16_PARTS: tl.constexpr,
):  # fmt: skip
    """One program a tile of channels, head and row. X_IN_RING: the kernel in front has appended x already.

    It reads before its wait what the kernel in front does not write, nor any that may still run.
    """
    i_p, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_g = i_h // HEADS_PER_GROUP
    if USE_PDL:  # after the wait it would cost half of the registers
        gdc_launch_dependents()
    row = i_b.to(tl.int64)
    i_read, i_own = tl.load(p_read + row * stride_read).to(tl.int64), tl.load(p_write + row * stride_write).to(tl.int64)
    o_p, o_n, o_w = i_p * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_W)
    m_p, m_n = o_p < P, o_n < N
    p_o = p_out + row * stride_o_b + i_h * stride_o_h + o_p
    if (i_read < 0) | (i_own < 0):
        wait(USE_PDL)
        tl.store(p_o, tl.zeros([BLOCK_P], p_out.dtype.element_ty), mask=m_p)
        return
    o_tile = i_h * stride_s_h + o_p[:, None] * stride_s_p + o_n[None, :]
    m_pn = m_p[:, None] & m_n[None, :]
    b_state = tl.load(p_state + i_read * stride_s_slot + o_tile, mask=m_pn, other=0.0)
    b_start, b_live = tl.load(p_start + i_own), tl.load(p_pending + i_own)
    p_xr = p_x_ring + i_own * stride_xr_slot + i_h * stride_xr_h + o_p
    o_place, m_w = ring_places(b_start, b_live, BLOCK_W, R)
    p_new = p_xr + new_place(b_start, b_live, R) * stride_xr_r
    m_wp = m_w[:, None] & m_p[None, :]
    b_xs = tl.load(p_xr[None, :] + o_place[:, None] * stride_xr_r, mask=m_wp, other=0.0).to(tl.float32)
    wait(USE_PDL)

    p_m = p_mix + (row * H + i_h) * (BLOCK_W + 2)
    b_mix = tl.load(p_m + o_w)
    b_new, b_decay = tl.load(p_m + BLOCK_W), tl.load(p_m + BLOCK_W + 1)
    b_C = tl.load(p_C + row * stride_C_b + i_g * stride_C_g + o_n, mask=m_n, other=0.0).to(tl.float32)
    if X_IN_RING:
        b_x = tl.load(p_new, mask=m_p, other=0.0)
    else:
        b_x = tl.load(p_x + row * stride_x_b + i_h * stride_x_h + o_p, mask=m_p, other=0.0)
    b_y = tl.sum(b_state.to(tl.float32) * b_C[None, :], axis=1) * b_decay
    b_y += tl.sum(b_mix[:, None] * b_xs, axis=0) + b_new * b_x.to(tl.float32)
    if HAS_Z:
        b_y *= silu(tl.load(p_z + row * stride_z_b + i_h * stride_z_h + o_p, mask=m_p, other=0.0).to(tl.float32))
    tl.store(p_o, b_y.to(p_out.dtype.element_ty), mask=m_p)
    if not X_IN_RING:
        tl.store(p_new, b_x.to(p_x_ring.dtype.element_ty), mask=m_p)

    if b_live + 1 > W:
        p_f = p_fold + (row * H + i_h) * (BLOCK_W + 2)
        o_row = i_h * stride_s_h + o_p[:, None] * stride_s_p
        fold_rows(
            p_state + i_read * stride_s_slot + o_row, p_state + i_own * stride_s_slot + o_row,
            p_B_ring + i_own * stride_Br_slot + i_g * stride_Br_g + o_place[:, None] * stride_Br_r,
            tl.trans(b_xs * tl.load(p_f + o_w)[:, None]), tl.load(p_f + BLOCK_W + 1), m_w, m_p,
            i_h * P + o_p, i_own, p_rand_seed, rand_layer,
            N=N, HAS_SEED=HAS_SEED, BF16_PARTS=BF16_PARTS, BLOCK_C=BLOCK_C,
        )  # fmt: skip
