"""The checkpointed step in one kernel, for small batches: no second launch, no load that waits for another but the
slot.

A program takes a row, a head and a tile of channels. It loads all R ring rows by place, live or not, beside the
state, and
sorts out by age afterwards which are live: the trackers are then not in front of the ring loads. The products C .
B_j are computed again by every head of a group, which costs nothing while the machine is idle; at larger batches
it does.
"""

import triton
import triton.language as tl

from statewise.ops.triton_common import fold_rows, silu, softplus, wait_for_earlier_kernels


@triton.jit
def fused_kernel(
    p_x, p_dt, p_A, p_B, p_C, p_D, p_z, p_dt_bias, p_state, p_x_ring, p_B_ring, p_dt_ring,
    p_start, p_pending, p_read, p_write, p_out, dt_low, dt_high,
    stride_x_b, stride_x_h, stride_dt_b, stride_dt_h, stride_B_b, stride_B_g, stride_C_b, stride_C_g,
    stride_z_b, stride_z_h, stride_s_slot, stride_s_h, stride_s_p, stride_xr_slot, stride_xr_h, stride_xr_r,
    stride_Br_slot, stride_Br_g, stride_Br_r, stride_dtr_slot, stride_dtr_h, stride_o_b, stride_o_h,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    USE_PDL: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    BF16_PARTS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_kernels(USE_PDL)
    i_p, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_g = i_h // HEADS_PER_GROUP
    i_read, i_own = tl.load(p_read + i_b).to(tl.int64), tl.load(p_write + i_b).to(tl.int64)
    o_p, o_n, o_r = i_p * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_R)
    m_p, m_n, m_r = o_p < P, o_n < N, o_r < R
    row = i_b.to(tl.int64)
    p_o = p_out + row * stride_o_b + i_h * stride_o_h + o_p
    if (i_read < 0) | (i_own < 0):
        tl.store(p_o, tl.zeros([BLOCK_P], p_out.dtype.element_ty), mask=m_p)
        return
    o_tile = i_h * stride_s_h + o_p[:, None] * stride_s_p + o_n[None, :]
    m_pn = m_p[:, None] & m_n[None, :]
    p_dtr = p_dt_ring + i_own * stride_dtr_slot + i_h * stride_dtr_h
    p_Br = p_B_ring + i_own * stride_Br_slot + i_g * stride_Br_g + o_n
    p_xr = p_x_ring + i_own * stride_xr_slot + i_h * stride_xr_h + o_p
    m_rn, m_rp = m_r[:, None] & m_n[None, :], m_r[:, None] & m_p[None, :]
    b_start, b_live = tl.load(p_start + i_own), tl.load(p_pending + i_own)
    b_state = tl.load(p_state + i_read * stride_s_slot + o_tile, mask=m_pn, other=0.0)
    b_dts = tl.load(p_dtr + o_r, mask=m_r, other=0.0)
    b_Bs = tl.load(p_Br[None, :] + o_r[:, None] * stride_Br_r, mask=m_rn, other=0.0)
    b_xs = tl.load(p_xr[None, :] + o_r[:, None] * stride_xr_r, mask=m_rp, other=0.0)
    b_x = tl.load(p_x + row * stride_x_b + i_h * stride_x_h + o_p, mask=m_p, other=0.0)
    b_B = tl.load(p_B + row * stride_B_b + i_g * stride_B_g + o_n, mask=m_n, other=0.0)
    b_C = tl.load(p_C + row * stride_C_b + i_g * stride_C_g + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_A = tl.load(p_A + i_h).to(tl.float32)
    b_dt = tl.load(p_dt + row * stride_dt_b + i_h * stride_dt_h).to(tl.float32)
    if HAS_BIAS:
        b_dt += tl.load(p_dt_bias + i_h).to(tl.float32)
    b_dt = softplus(b_dt)
    if HAS_LIMIT:
        b_dt = tl.minimum(tl.maximum(b_dt, dt_low), dt_high)

    # The log decay from ring row r to now is the sum of A dt over the younger live rows. Dead rows are selected away.
    b_age = (o_r - b_start + R) % R
    m_live = (b_age < b_live) & m_r
    b_dts = tl.where(m_live, b_dts, 0.0)
    m_younger = b_age[None, :] > b_age[:, None]
    b_after = b_A * tl.sum(tl.where(m_younger, b_dts[None, :], 0.0), axis=1)
    b_fold = tl.where(m_live, tl.exp(b_after) * b_dts, 0.0)
    b_Bs = tl.where(m_live[:, None], b_Bs, 0.0)
    b_xs = tl.where(m_live[:, None], b_xs, 0.0).to(tl.float32)
    b_past = b_A * tl.sum(b_dts, axis=0)
    b_step = tl.exp(b_A * b_dt)
    b_mix = b_step * b_fold * tl.sum(b_Bs.to(tl.float32) * b_C[None, :], axis=1)
    b_new = b_dt * tl.sum(b_B.to(tl.float32) * b_C, axis=0)
    if HAS_D:
        b_new += tl.load(p_D + i_h).to(tl.float32)

    b_y = tl.sum(b_state.to(tl.float32) * b_C[None, :], axis=1) * (b_step * tl.exp(b_past))
    b_y += tl.sum(b_mix[:, None] * b_xs, axis=0) + b_new * b_x.to(tl.float32)
    if HAS_Z:
        b_y *= silu(tl.load(p_z + row * stride_z_b + i_h * stride_z_h + o_p, mask=m_p, other=0.0).to(tl.float32))
    tl.store(p_o, b_y.to(p_out.dtype.element_ty), mask=m_p)

    o_new = (b_start + b_live) % R
    tl.store(p_xr + o_new * stride_xr_r, b_x.to(p_x_ring.dtype.element_ty), mask=m_p)
    if i_p == 0:
        tl.store(p_dtr + o_new, b_dt)
        if i_h % HEADS_PER_GROUP == 0:
            tl.store(p_Br + o_new * stride_Br_r, b_B.to(p_B_ring.dtype.element_ty), mask=m_n)
    if b_live + 1 > W:
        o_row = i_h * stride_s_h + o_p[:, None] * stride_s_p
        fold_rows(
            p_state + i_read * stride_s_slot + o_row, p_state + i_own * stride_s_slot + o_row,
            p_B_ring + i_own * stride_Br_slot + i_g * stride_Br_g + o_r[:, None] * stride_Br_r,
            tl.trans(b_xs * b_fold[:, None]), tl.exp(b_past), m_live, m_p,
            N=N, BF16_PARTS=BF16_PARTS, BLOCK_C=BLOCK_C,
        )  # fmt: skip
