"""The activation of an MLP on an NVIDIA GPU: one launch that reads the numbers once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.triton_common import (
    as_rows,
    cdiv,
    expect_last_contiguous,
    expect_no_double,
    pdl_options,
    silu,
    start,
)

BLOCK = 1024


@triton.jit
def mlp_activation_kernel(
    p_x, p_out, D, stride_x, stride_out, GATED: tl.constexpr, USE_PDL: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    start(USE_PDL, False)
    row = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_d = o_d < D
    b_x = tl.load(p_x + row * stride_x + o_d, mask=m_d, other=0.0).to(tl.float32)
    if GATED:
        b_y = silu(b_x) * tl.load(p_x + row * stride_x + D + o_d, mask=m_d, other=0.0).to(tl.float32)
    else:
        b_y = tl.maximum(b_x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        b_y *= b_y
    tl.store(p_out + row * stride_out + o_d, b_y.to(p_out.dtype.element_ty), mask=m_d)


def mlp_activation(x: Tensor, gated: bool) -> Tensor:
    expect_no_double("mlp_activation", x)
    expect_last_contiguous("mlp_activation", x=x)
    width = x.shape[-1] // 2 if gated else x.shape[-1]
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    x_rows, pdl = as_rows("mlp_activation", "x", x), pdl_options(x.device)
    mlp_activation_kernel[(x_rows.shape[0], cdiv(width, BLOCK))](
        p_x=x, p_out=out, D=width, stride_x=x_rows.stride(0), stride_out=width,
        GATED=gated, BLOCK=BLOCK, num_warps=4, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return out
