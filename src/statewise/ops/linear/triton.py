"""The linear layer of a decode step on an NVIDIA GPU: every program reads some rows of the weights from end to end.

A library's kernel starts when the one in front of it has ended, and its first bytes come a few microseconds later; a
decode step has a hundred of them. This one is launched while the one in front still runs, and asks for its first
weights, which nobody writes, before it waits for its input.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.linear.torch import linear as library
from statewise.ops.triton_common import INTERPRETED, pdl_options, start, wait

MOST_ROWS = 64  # above, a library's tiles are better
DTYPES = (torch.bfloat16, torch.float16)
PROGRAMS = 264  # two a multiprocessor of an H200: fewer leave bandwidth idle
AHEAD = 1024  # weights of a row that are asked for before the wait


class Launch(NamedTuple):
    """block_n: rows of the weights a program. block_k: of their columns at a time."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def launch_parameters(rows: int, outputs: int) -> Launch:
    """By how many programs there are. Any choice gives a row the same bits whatever the other rows are."""
    block_n = next((block for block in (64, 32) if outputs >= block * PROGRAMS), 16)
    block_k = 256 if rows <= 16 else 128
    return Launch(block_n, block_k, 4, 4)


@triton.jit
def linear_kernel(
    p_x, p_weight, p_bias, p_out, rows, outputs, stride_x, stride_weight, stride_out,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, RELU2: tl.constexpr, USE_PDL: tl.constexpr, INTERPRETED: tl.constexpr,
    AHEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, True)
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    o_m, o_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    m_n, m_m = o_n < outputs, o_m < rows
    if USE_PDL:
        o_line = tl.arange(0, AHEAD // 64) * 64  # a line of the cache is 64 numbers
        p_line = p_weight + tl.minimum(o_n, outputs - 1)[:, None] * stride_weight + tl.minimum(o_line, K - 1)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [p_line], dtype=tl.int32, is_pure=False, pack=1
        )
    wait(USE_PDL)

    p_w = p_weight + o_n[:, None] * stride_weight + o_k[None, :]
    p_rows = p_x + o_m[:, None].to(tl.int64) * stride_x + o_k[None, :]
    b_y = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for i_k in range(0, K, BLOCK_K):
        m_k = (o_k < K - i_k)[None, :]
        b_w = tl.load(p_w + i_k, mask=m_n[:, None] & m_k, other=0.0)
        b_x = tl.load(p_rows + i_k, mask=m_m[:, None] & m_k, other=0.0)
        if INTERPRETED:
            b_w, b_x = b_w.to(tl.float32), b_x.to(tl.float32)
        b_y = tl.dot(b_w, tl.trans(b_x), b_y)
    if HAS_BIAS:
        b_y += tl.load(p_bias + o_n, mask=m_n, other=0.0).to(tl.float32)[:, None]
    if RELU2:
        b_y = tl.maximum(b_y, 0.0)
        b_y *= b_y
    p_o = p_out + o_m[None, :].to(tl.int64) * stride_out + o_n[:, None]
    tl.store(p_o, b_y.to(p_out.dtype.element_ty), mask=m_n[:, None] & m_m[None, :])


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out: Tensor | None,
    run: Launch | None = None,
) -> Tensor:
    """run: how it is launched; None: as `launch_parameters` says."""
    rows, width = x.shape
    if not _is_ours(x, weight, out):
        return library(x, weight, bias, activation, out)
    outputs = weight.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device) if out is None else out
    run, pdl = run or launch_parameters(rows, outputs), pdl_options(x.device)
    linear_kernel[(triton.cdiv(outputs, run.block_n),)](
        p_x=x, p_weight=weight, p_bias=bias, p_out=out, rows=rows, outputs=outputs,
        stride_x=x.stride(0), stride_weight=weight.stride(0), stride_out=out.stride(0),
        K=width, HAS_BIAS=bias is not None, RELU2=activation == "relu2", INTERPRETED=INTERPRETED, AHEAD=AHEAD,
        BLOCK_M=max(16, triton.next_power_of_2(rows)), BLOCK_N=run.block_n, BLOCK_K=run.block_k,
        num_warps=run.num_warps, num_stages=run.num_stages, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return out


def _is_ours(x: Tensor, weight: Tensor, out: Tensor | None) -> bool:
    """Few rows, 16-bit numbers, side by side in memory."""
    given = [x, weight] if out is None else [x, weight, out]
    return (
        1 <= x.shape[0] <= MOST_ROWS
        and x.shape[1] > 0
        and x.dtype in DTYPES
        and all(t.dtype == x.dtype and t.stride(1) == 1 for t in given)
    )
