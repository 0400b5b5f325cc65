"""The product on an NVIDIA GPU: one launch of programs that stay and take tiles from a list; see the README."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.triton_common import (
    cdiv,
    dot_precision,
    expect_last_contiguous,
    expect_no_double,
    multiprocessors,
    next_power_of_2,
    pdl_options,
    start,
)

OP = "grouped_linear"


@triton.jit(do_not_specialize=["p_ends"])
def grouped_linear_kernel(
    p_rows, p_weight, p_ends, p_out, stride_rows, stride_group, stride_weight,
    GROUPS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """An item is BLOCK_M rows of a group by BLOCK_N outputs. A program takes every n-th.

    The items of a group lie side by side, and among them those that read the same weights.
    """
    start(USE_PDL, False)
    TILES: tl.constexpr = tl.cdiv(OUT, BLOCK_N)
    o_g = tl.arange(0, BLOCK_G)
    b_end = tl.load(p_ends + o_g, mask=o_g < GROUPS, other=0)
    b_begin = tl.load(p_ends + o_g - 1, mask=(o_g > 0) & (o_g < GROUPS), other=0)
    b_last = tl.cumsum(tl.cdiv(b_end - b_begin, BLOCK_M), axis=0) * TILES  # where each group's items end
    o_k = tl.arange(0, BLOCK_K)
    for item in range(tl.program_id(0), tl.max(b_last, axis=0), tl.num_programs(0)):
        is_before = b_last <= item
        group = tl.sum(is_before.to(tl.int32), axis=0)
        i_own = item - tl.max(tl.where(is_before, b_last, 0), axis=0)
        begin = tl.load(p_ends + group - 1, mask=group > 0, other=0)
        end = tl.load(p_ends + group)
        count = tl.cdiv(end - begin, BLOCK_M)
        o_n = (i_own // count) * BLOCK_N + tl.arange(0, BLOCK_N)
        o_m = (begin + (i_own % count) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        m_n, m_m = o_n < OUT, o_m < end
        p_w = p_weight + group.to(tl.int64) * stride_group + o_n.to(tl.int64)[:, None] * stride_weight
        p_x = p_rows + o_m[:, None] * stride_rows

        b_y = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)  # the weights are the tall operand: 16 rows are enough
        for k in tl.range(0, IN, BLOCK_K, num_stages=STAGES):
            m_k = k + o_k < IN
            b_w = tl.load(p_w + (k + o_k)[None, :], mask=m_n[:, None] & m_k[None, :], other=0.0)
            b_x = tl.load(p_x + (k + o_k)[None, :], mask=m_m[:, None] & m_k[None, :], other=0.0)
            b_y = tl.dot(b_w, tl.trans(b_x), b_y, input_precision=PRECISION)
        p_y = p_out + o_m[None, :] * OUT + o_n[:, None]
        tl.store(p_y, b_y.to(p_out.dtype.element_ty), mask=m_n[:, None] & m_m[None, :])


@dataclass(frozen=True)
class Launch:
    """By shapes and dtype alone: were it by how long the groups are, a row's bits would depend on its company."""

    block_m: int  # rows of a tile
    block_n: int  # outputs of a tile
    block_k: int  # inputs of a piece
    num_stages: int  # so many pieces at once
    num_warps: int
    resident: int  # programs on a multiprocessor; of no influence on the bits


def launch(rows: int, size: int, groups: int, itemsize: int) -> Launch:
    """By the mean of a group, and half as many rows again, since groups differ. At most 96 KiB of shared memory."""
    block_m = min(128, max(16, next_power_of_2(cdiv(3 * rows, 2 * groups))))
    if itemsize == 4:
        return Launch(block_m, 64, 32, 4, 4, 4) if block_m <= 32 else Launch(64, 64, 32, 4, 4, 3)
    if block_m <= 32:
        block_k = 128 if size % 128 == 0 else 64
        return Launch(block_m, 64, block_k, 4 * 128 // block_k, 4, 2)
    return Launch(64, 128, 64, 4, 4, 2) if block_m == 64 else Launch(128, 128, 64, 3, 8, 2)


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor, run: Launch | None = None) -> Tensor:
    """run: for measurements; None: by `launch`."""
    (count, size), (groups, out) = rows.shape, weight.shape[:2]
    expect_no_double(OP, rows)
    expect_last_contiguous(OP, rows=rows, weight=weight, ends=ends)
    y = torch.empty(count, out, dtype=rows.dtype, device=rows.device)
    if count == 0:
        return y
    run = run or launch(count, size, groups, rows.itemsize)
    most = min(count, count // run.block_m + groups)  # tiles of rows
    programs = min(run.resident * multiprocessors(rows.device), most * cdiv(out, run.block_n))
    pdl = pdl_options(rows.device)
    grouped_linear_kernel[(programs,)](
        p_rows=rows, p_weight=weight, p_ends=ends, p_out=y,
        stride_rows=rows.stride(0), stride_group=weight.stride(0), stride_weight=weight.stride(1),
        GROUPS=groups, IN=size, OUT=out, BLOCK_G=next_power_of_2(groups),
        BLOCK_M=run.block_m, BLOCK_N=run.block_n, BLOCK_K=run.block_k, STAGES=run.num_stages,
        PRECISION=dot_precision(rows), USE_PDL=bool(pdl), num_warps=run.num_warps, **pdl,
    )  # fmt: skip
    return y
