"""The checkpointed step in two kernels, for large batches: coefficients, then one that reads the state.

The first has a program a (row, group): the products C . B_j of the ring rows are the same for all heads of a group. It
writes one coefficient a head and ring row, so that the second kernel is a state read and two small products. The second
is launched as the first one's programmatic dependent: it fetches its tile of the state while the first still runs.
"""

import triton
import triton.language as tl

from statewise.ops.triton_common import INTERPRETED, fold_rows, silu, softplus, wait_for_earlier_kernels

if not INTERPRETED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def coefficients_kernel(
    p_dt, p_A, p_B, p_C, p_D, p_dt_bias, p_B_ring, p_dt_ring, p_start, p_pending, p_read, p_write, p_mix, p_fold,
    dt_low, dt_high,
    stride_dt_b, stride_dt_h, stride_B_b, stride_B_g, stride_C_b, stride_C_g,
    stride_Br_slot, stride_Br_g, stride_Br_r, stride_dtr_slot, stride_dtr_h,
    H, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    HAS_D: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr, USE_PDL: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """mix (B, H, BLOCK_W + 2): a weight for each pending row's x, then the new row's, then the checkpoint's.
    fold (B, H, BLOCK_W + 2), of rows that flush: the same for the state that is written; the second to last is
    unused."""
    wait_for_earlier_kernels(USE_PDL)
    i_s, i_g, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_own = tl.load(p_write + i_b).to(tl.int64)
    if (i_own < 0) | (tl.load(p_read + i_b) < 0):
        return
    row = i_b.to(tl.int64)
    b_start, b_live = tl.load(p_start + i_own), tl.load(p_pending + i_own)
    o_n, o_w = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_W)
    m_n, m_w = o_n < N, o_w < b_live
    o_place = (b_start + o_w) % R
    o_new = (b_start + b_live) % R

    p_Br = p_B_ring + i_own * stride_Br_slot + i_g * stride_Br_g
    m_wn = m_w[:, None] & m_n[None, :]
    b_old = tl.load(p_Br + o_place[:, None] * stride_Br_r + o_n[None, :], mask=m_wn, other=0.0).to(tl.float32)
    b_C = tl.load(p_C + row * stride_C_b + i_g * stride_C_g + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_B = tl.load(p_B + row * stride_B_b + i_g * stride_B_g + o_n, mask=m_n, other=0.0)
    if i_s == 0:
        tl.store(p_Br + o_new * stride_Br_r + o_n, b_B.to(p_B_ring.dtype.element_ty), mask=m_n)
    b_CB = tl.sum(b_old * b_C[None, :], axis=1)
    b_CB_new = tl.sum(b_B.to(tl.float32) * b_C, axis=0)

    o_k = i_s * BLOCK_H + tl.arange(0, BLOCK_H)
    m_h = o_k < HEADS_PER_GROUP
    o_h = i_g * HEADS_PER_GROUP + o_k
    b_dt = tl.load(p_dt + row * stride_dt_b + o_h * stride_dt_h, mask=m_h, other=0.0).to(tl.float32)
    if HAS_BIAS:
        b_dt += tl.load(p_dt_bias + o_h, mask=m_h, other=0.0).to(tl.float32)
    b_dt = softplus(b_dt)
    if HAS_LIMIT:
        b_dt = tl.minimum(tl.maximum(b_dt, dt_low), dt_high)
    p_dtr = p_dt_ring + i_own * stride_dtr_slot + o_h * stride_dtr_h
    m_hw = m_h[:, None] & m_w[None, :]
    b_dts = tl.load(p_dtr[:, None] + o_place[None, :], mask=m_hw, other=0.0)
    tl.store(p_dtr + o_new, b_dt, mask=m_h)

    b_A = tl.load(p_A + o_h, mask=m_h, other=0.0).to(tl.float32)
    b_steps = b_A[:, None] * b_dts
    b_total = tl.cumsum(b_steps, axis=1)
    b_past = tl.sum(b_steps, axis=1)
    b_now = b_past + b_A * b_dt
    o_out = (row * H + o_h) * (BLOCK_W + 2)
    o_hw = o_out[:, None] + o_w[None, :]
    b_mix = tl.exp(b_now[:, None] - b_total) * b_dts * b_CB[None, :]
    b_new = b_dt * b_CB_new
    if HAS_D:
        b_new += tl.load(p_D + o_h, mask=m_h, other=0.0).to(tl.float32)
    tl.store(p_mix + o_hw, b_mix, mask=m_h[:, None])
    tl.store(p_mix + o_out + BLOCK_W, b_new, mask=m_h)
    tl.store(p_mix + o_out + BLOCK_W + 1, tl.exp(b_now), mask=m_h)
    if b_live + 1 > W:
        tl.store(p_fold + o_hw, tl.exp(b_past[:, None] - b_total) * b_dts, mask=m_h[:, None])
        tl.store(p_fold + o_out + BLOCK_W + 1, tl.exp(b_past), mask=m_h)


@triton.jit
def output_kernel(
    p_x, p_B_ring, p_C, p_z, p_state, p_x_ring, p_start, p_pending, p_read, p_write, p_mix, p_fold, p_out,
    stride_x_b, stride_x_h, stride_C_b, stride_C_g, stride_z_b, stride_z_h,
    stride_s_slot, stride_s_h, stride_s_p, stride_xr_slot, stride_xr_h, stride_xr_r,
    stride_Br_slot, stride_Br_g, stride_Br_r, stride_o_b, stride_o_h,
    H, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    HAS_Z: tl.constexpr, USE_PDL: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
    BF16_PARTS: tl.constexpr,
):  # fmt: skip
    i_p, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_g = i_h // HEADS_PER_GROUP
    if USE_PDL:  # after the wait it would cost half of the registers
        gdc_launch_dependents()
    i_read, i_own = tl.load(p_read + i_b).to(tl.int64), tl.load(p_write + i_b).to(tl.int64)
    o_p, o_n, o_w = i_p * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_W)
    m_p, m_n = o_p < P, o_n < N
    row = i_b.to(tl.int64)
    p_o = p_out + row * stride_o_b + i_h * stride_o_h + o_p
    if (i_read < 0) | (i_own < 0):
        if USE_PDL:  # a kernel that ended before the one in front of it would let the next one start too early
            gdc_wait()
        tl.store(p_o, tl.zeros([BLOCK_P], p_out.dtype.element_ty), mask=m_p)
        return
    o_tile = i_h * stride_s_h + o_p[:, None] * stride_s_p + o_n[None, :]
    m_pn = m_p[:, None] & m_n[None, :]
    b_state = tl.load(p_state + i_read * stride_s_slot + o_tile, mask=m_pn, other=0.0)
    b_C = tl.load(p_C + row * stride_C_b + i_g * stride_C_g + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_x = tl.load(p_x + row * stride_x_b + i_h * stride_x_h + o_p, mask=m_p, other=0.0)
    b_start, b_live = tl.load(p_start + i_own), tl.load(p_pending + i_own)
    o_place = (b_start + o_w) % R
    m_w = o_w < b_live
    p_xr = p_x_ring + i_own * stride_xr_slot + i_h * stride_xr_h + o_p
    m_wp = m_w[:, None] & m_p[None, :]
    b_xs = tl.load(p_xr[None, :] + o_place[:, None] * stride_xr_r, mask=m_wp, other=0.0).to(tl.float32)
    if USE_PDL:
        gdc_wait()

    p_m = p_mix + (row * H + i_h) * (BLOCK_W + 2)
    b_mix = tl.load(p_m + o_w)
    b_new, b_decay = tl.load(p_m + BLOCK_W), tl.load(p_m + BLOCK_W + 1)
    b_y = tl.sum(b_state.to(tl.float32) * b_C[None, :], axis=1) * b_decay
    b_y += tl.sum(b_mix[:, None] * b_xs, axis=0) + b_new * b_x.to(tl.float32)
    if HAS_Z:
        b_y *= silu(tl.load(p_z + row * stride_z_b + i_h * stride_z_h + o_p, mask=m_p, other=0.0).to(tl.float32))
    tl.store(p_o, b_y.to(p_out.dtype.element_ty), mask=m_p)
    tl.store(p_xr + ((b_start + b_live) % R) * stride_xr_r, b_x.to(p_x_ring.dtype.element_ty), mask=m_p)

    if b_live + 1 > W:
        p_f = p_fold + (row * H + i_h) * (BLOCK_W + 2)
        o_row = i_h * stride_s_h + o_p[:, None] * stride_s_p
        fold_rows(
            p_state + i_read * stride_s_slot + o_row, p_state + i_own * stride_s_slot + o_row,
            p_B_ring + i_own * stride_Br_slot + i_g * stride_Br_g + o_place[:, None] * stride_Br_r,
            tl.trans(b_xs * tl.load(p_f + o_w)[:, None]), tl.load(p_f + BLOCK_W + 1), m_w, m_p,
            N=N, BF16_PARTS=BF16_PARTS, BLOCK_C=BLOCK_C,
        )  # fmt: skip
