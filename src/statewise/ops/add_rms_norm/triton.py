"""Add and norm on an NVIDIA GPU: a program a row, which it reads once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.common import expect
from statewise.ops.triton_common import (
    expect_last_contiguous,
    expect_no_double,
    next_power_of_2,
    pdl_options,
    start,
    wait,
)

OP = "add_rms_norm"
MAX_WIDTH = 65536  # channels of a row that still fit the registers of a program


@triton.jit
def add_rms_norm_kernel(
    p_residual, p_update, p_weight, p_normed, p_total,
    D, stride_residual, stride_update, stride_normed, stride_total, eps,
    HAS_UPDATE: tl.constexpr, USE_PDL: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, True)
    row = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    b_weight = tl.load(p_weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    wait(USE_PDL)

    b_total = tl.load(p_residual + row * stride_residual + o_d, mask=m_d, other=0.0)
    if HAS_UPDATE:
        b_sum = b_total.to(tl.float32) + tl.load(p_update + row * stride_update + o_d, mask=m_d, other=0.0)
        b_total = b_sum.to(p_total.dtype.element_ty)
        tl.store(p_total + row * stride_total + o_d, b_total, mask=m_d)
    b_y = b_total.to(tl.float32)
    b_y = b_y * tl.rsqrt(tl.sum(b_y * b_y, axis=0) / D + eps) * b_weight
    tl.store(p_normed + row * stride_normed + o_d, b_y.to(p_normed.dtype.element_ty), mask=m_d)


def add_rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, width = residual.shape
    expect_no_double(OP, residual, weight)
    expect_last_contiguous(OP, residual=residual, update=update, weight=weight)
    expect(width <= MAX_WIDTH, OP, f"D is {width}, the triton backend takes up to {MAX_WIDTH}")
    total = residual if update is None else torch.empty_like(residual, memory_format=torch.contiguous_format)
    normed = torch.empty(residual.shape, dtype=weight.dtype, device=residual.device)
    if normed.numel() == 0:
        return normed, total
    block, pdl = next_power_of_2(width), pdl_options(residual.device)
    add_rms_norm_kernel[(rows,)](
        p_residual=residual, p_update=update, p_weight=weight, p_normed=normed, p_total=total,
        D=width, stride_residual=residual.stride(0), stride_update=0 if update is None else update.stride(0),
        stride_normed=normed.stride(0), stride_total=total.stride(0), eps=eps,
        HAS_UPDATE=update is not None, BLOCK_D=block, num_warps=max(1, min(16, block // 256)),
        USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return normed, total
