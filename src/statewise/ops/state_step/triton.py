"""The plain step on an NVIDIA GPU: a program a row, head and tile of channels; the state passes registers once."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops import tuning
from statewise.ops.common import NO_LIMIT
from statewise.ops.triton_common import (
    cdiv,
    expect_last_contiguous,
    expect_no_double,
    next_power_of_2,
    pdl_options,
    silu,
    softplus,
    start,
    wait,
)
from statewise.ops.triton_rounding import as_written
from statewise.ops.tuning import StepShape


@triton.jit(do_not_specialize=["rand_layer"])
def state_step_kernel(
    p_x, p_dt, p_A, p_B, p_C, p_D, p_z, p_dt_bias, p_state, p_read, p_write, p_out, p_rand_seed,
    dt_low, dt_high, rand_layer,
    stride_x_b, stride_x_h, stride_dt_b, stride_dt_h, stride_B_b, stride_B_g, stride_C_b, stride_C_g,
    stride_z_b, stride_z_h, stride_read, stride_write, stride_s_slot, stride_s_h, stride_s_p, stride_o_b, stride_o_h,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    USE_PDL: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr,
    HAS_SEED: tl.constexpr, PREFETCH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, PREFETCH)
    i_p, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_g = i_h // HEADS_PER_GROUP
    row = i_b.to(tl.int64)
    i_read = tl.load(p_read + row * stride_read).to(tl.int64)
    i_write = tl.load(p_write + row * stride_write).to(tl.int64)
    o_p = i_p * BLOCK_P + tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    m_p, m_n = o_p < P, o_n < N
    m_pn = m_p[:, None] & m_n[None, :]
    p_o = p_out + row * stride_o_b + i_h * stride_o_h + o_p
    if (i_read < 0) | (i_write < 0):
        if PREFETCH:
            wait(USE_PDL)
        tl.store(p_o, tl.zeros([BLOCK_P], p_out.dtype.element_ty), mask=m_p)
        return
    o_tile = i_h * stride_s_h + o_p[:, None] * stride_s_p + o_n[None, :]
    b_state = tl.load(p_state + i_read * stride_s_slot + o_tile, mask=m_pn, other=0.0).to(tl.float32)
    b_A = tl.load(p_A + i_h).to(tl.float32)
    if PREFETCH:
        wait(USE_PDL)

    b_dt = tl.load(p_dt + row * stride_dt_b + i_h * stride_dt_h).to(tl.float32)
    if HAS_BIAS:
        b_dt += tl.load(p_dt_bias + i_h).to(tl.float32)
    b_dt = softplus(b_dt)
    if HAS_LIMIT:
        b_dt = tl.minimum(tl.maximum(b_dt, dt_low), dt_high)
    b_decay = tl.exp(b_A * b_dt)
    b_x = tl.load(p_x + row * stride_x_b + i_h * stride_x_h + o_p, mask=m_p, other=0.0).to(tl.float32)
    b_B = tl.load(p_B + row * stride_B_b + i_g * stride_B_g + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_C = tl.load(p_C + row * stride_C_b + i_g * stride_C_g + o_n, mask=m_n, other=0.0).to(tl.float32)

    b_state = b_decay * b_state + (b_dt * b_x)[:, None] * b_B[None, :]
    dtype: tl.constexpr = p_state.dtype.element_ty
    b_new = as_written(b_state, i_h * P + o_p, 0, i_write, p_rand_seed, rand_layer, N, HAS_SEED, dtype)
    tl.store(p_state + i_write * stride_s_slot + o_tile, b_new, mask=m_pn)
    b_y = tl.sum(b_state * b_C[None, :], axis=1)
    if HAS_D:
        b_y += tl.load(p_D + i_h).to(tl.float32) * b_x
    if HAS_Z:
        b_y *= silu(tl.load(p_z + row * stride_z_b + i_h * stride_z_h + o_p, mask=m_p, other=0.0).to(tl.float32))
    tl.store(p_o, b_y.to(p_out.dtype.element_ty), mask=m_p)


@dataclass(frozen=True)
class Launch:
    """How a step is launched. prefetch: whether it makes use of the caller's promise."""

    block_p: int
    num_warps: int
    prefetch: bool


def launch_parameters(rows: int, shape: StepShape, device: torch.device | None) -> Launch:
    """For so many (row, head) pairs: as measured on this GPU, or else by `rule`."""
    return tuning.lookup("state_step", Launch, rows, shape, device) or rule(rows, shape)


def rule(rows: int, shape: StepShape) -> Launch:
    """From measurements on an H200: once a batch fills the device, small programs that read ahead are best."""
    warps = 4 if shape.state_bytes == 4 else 2
    if shape.prefetch and rows > 256:
        warps = 1
    return Launch(min(next_power_of_2(shape.head_dim), 16), warps, shape.prefetch)


def state_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    rand_seed: Tensor | None,
    rand_layer: int,
    out: Tensor | None = None,
    prefetch: bool = False,
) -> Tensor:
    (batch, heads, head_dim), (groups, state_size) = x.shape, B.shape[1:]
    expect_no_double("state_step", x, state)
    expect_last_contiguous("state_step", x=x, B=B, C=C, z=z, state=state, A=A, D=D, dt_bias=dt_bias, out=out)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if out.numel() == 0:
        return out
    pdl = pdl_options(x.device)
    shape = StepShape(head_dim, state_size, state.element_size(), x.element_size(), heads // groups, 1, prefetch)
    run = launch_parameters(batch * heads, shape, x.device)
    state_step_kernel[(cdiv(head_dim, run.block_p), heads, batch)](
        p_x=x, p_dt=dt, p_A=A, p_B=B, p_C=C, p_D=D, p_z=z, p_dt_bias=dt_bias, p_state=state,
        p_read=read_slots, p_write=write_slots, p_out=out, p_rand_seed=rand_seed,
        dt_low=dt_limit[0], dt_high=dt_limit[1], rand_layer=rand_layer,
        stride_x_b=x.stride(0), stride_x_h=x.stride(1), stride_dt_b=dt.stride(0), stride_dt_h=dt.stride(1),
        stride_B_b=B.stride(0), stride_B_g=B.stride(1), stride_C_b=C.stride(0), stride_C_g=C.stride(1),
        stride_z_b=0 if z is None else z.stride(0), stride_z_h=0 if z is None else z.stride(1),
        stride_read=read_slots.stride(0), stride_write=write_slots.stride(0),
        stride_s_slot=state.stride(0), stride_s_h=state.stride(1), stride_s_p=state.stride(2),
        stride_o_b=out.stride(0), stride_o_h=out.stride(1),
        P=head_dim, N=state_size, HEADS_PER_GROUP=heads // groups,
        HAS_D=D is not None, HAS_Z=z is not None, HAS_BIAS=dt_bias is not None, HAS_LIMIT=dt_limit != NO_LIMIT,
        HAS_SEED=rand_seed is not None, BLOCK_P=run.block_p, BLOCK_N=next_power_of_2(state_size),
        num_warps=run.num_warps, PREFETCH=prefetch and run.prefetch, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return out
