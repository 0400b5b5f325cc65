"""The gated norm on an NVIDIA GPU: a program holds whole groups in registers, so x and z are read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.common import expect
from statewise.ops.triton_common import (
    as_rows,
    cdiv,
    expect_last_contiguous,
    expect_no_double,
    next_power_of_2,
    pdl_options,
    silu,
    start,
    wait,
)

MAX_GROUP = 32768  # channels of one group that still fit the registers of a program


@triton.jit(do_not_specialize=["rows"])
def gated_rms_norm_kernel(
    p_x, p_z, p_weight, p_out,
    rows, channels, stride_x, stride_z, stride_out, eps,
    SPAN: tl.constexpr, HAS_Z: tl.constexpr, HAS_WEIGHT: tl.constexpr, NORM_BEFORE_GATE: tl.constexpr,
    USE_PDL: tl.constexpr, PREFETCH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, PREFETCH)
    o_row = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)
    o_span = tl.arange(0, BLOCK_D)
    o_d = tl.program_id(1) * SPAN + o_span
    m_d = (o_span < SPAN) & (o_d < channels)
    mask = (o_row < rows)[:, None] & m_d[None, :]
    if HAS_WEIGHT:
        b_weight = tl.load(p_weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    if PREFETCH:
        wait(USE_PDL)

    b_y = tl.load(p_x + o_row[:, None] * stride_x + o_d[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_Z:
        b_gate = silu(tl.load(p_z + o_row[:, None] * stride_z + o_d[None, :], mask=mask, other=0.0).to(tl.float32))
        if not (HAS_WEIGHT and NORM_BEFORE_GATE):
            b_y *= b_gate
    if HAS_WEIGHT:
        b_mean = tl.sum(b_y * b_y, axis=1) / SPAN
        b_y = b_y * tl.rsqrt(b_mean + eps)[:, None] * b_weight[None, :]
        if HAS_Z and NORM_BEFORE_GATE:
            b_y *= b_gate
    tl.store(p_out + o_row[:, None] * stride_out + o_d[None, :], b_y.to(p_out.dtype.element_ty), mask=mask)


def launch_parameters(span: int) -> tuple[int, int, int]:
    """(BLOCK_R, BLOCK_D, num_warps) for groups of ``span`` channels: at least 1024 numbers a program, 8 a thread."""
    block_d = next_power_of_2(span)
    block_r = max(1, 1024 // block_d)
    return block_r, block_d, min(16, block_r * block_d // 256)


def gated_rms_norm(
    x: Tensor,
    z: Tensor | None,
    weight: Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    out: Tensor | None = None,
    prefetch: bool = False,
) -> Tensor:
    channels = x.shape[-1]
    expect_no_double("gated_rms_norm", x)
    expect_last_contiguous("gated_rms_norm", x=x, z=z, weight=weight, out=out)
    fits = weight is None or group_size <= MAX_GROUP
    expect(fits, "gated_rms_norm", f"group_size {group_size}, the triton backend takes up to {MAX_GROUP}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if out.numel() == 0:
        return out
    x_rows = as_rows("gated_rms_norm", "x", x)
    z_rows, out_rows = None if z is None else as_rows("gated_rms_norm", "z", z), as_rows("gated_rms_norm", "out", out)
    span = min(channels, 1024) if weight is None else group_size  # without a norm any cut of the channels will do
    block_r, block_d, num_warps = launch_parameters(span)
    rows, pdl = x_rows.shape[0], pdl_options(x.device)
    gated_rms_norm_kernel[(cdiv(rows, block_r), cdiv(channels, span))](
        p_x=x_rows, p_z=z_rows, p_weight=weight, p_out=out_rows,
        rows=rows, channels=channels, stride_x=x_rows.stride(0), stride_out=out_rows.stride(0),
        stride_z=0 if z_rows is None else z_rows.stride(0),
        eps=eps,
        SPAN=span, HAS_Z=z is not None, HAS_WEIGHT=weight is not None, NORM_BEFORE_GATE=norm_before_gate,
        BLOCK_R=block_r, BLOCK_D=block_d, num_warps=num_warps, PREFETCH=prefetch, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return out
