"""RoPE on an NVIDIA GPU: one launch for query and key, a program a token and a block of heads."""

import math

import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.triton_common import (
    cdiv,
    expect_last_contiguous,
    expect_no_double,
    next_power_of_2,
    pdl_options,
    start,
    wait,
)

OP = "apply_rope"
PAIRS = 1024  # of a program
TURN = tl.constexpr(2 * math.pi)  # in radians
RADIAN = tl.constexpr(0.5 / math.pi)  # in turns


@triton.jit
def rotate(
    p_x, i_first, heads, stride_h, b_cos, b_sin,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_H heads of one token, from head i_first on, in place."""
    o_h, o_r = i_first + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_R)
    p_pair = p_x + o_h[:, None] * stride_h + o_r[None, :]
    mask = (o_h < heads)[:, None] & (o_r < HALF)[None, :]
    b_first = tl.load(p_pair, mask=mask, other=0.0).to(tl.float32)
    b_second = tl.load(p_pair + HALF, mask=mask, other=0.0).to(tl.float32)
    b_cos, b_sin = b_cos[None, :], b_sin[None, :]
    tl.store(p_pair, (b_first * b_cos - b_second * b_sin).to(p_x.dtype.element_ty), mask=mask)
    tl.store(p_pair + HALF, (b_second * b_cos + b_first * b_sin).to(p_x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["p_positions"])
def apply_rope_kernel(
    p_query, p_key, p_positions, p_inv_freq,
    stride_query, stride_query_h, stride_key, stride_key_h, stride_position,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, True)
    token, i_block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_r = tl.arange(0, BLOCK_R)
    b_inv_freq = tl.load(p_inv_freq + o_r, mask=o_r < HALF, other=0.0)
    wait(USE_PDL)

    # In turns and in float64 up to here: float32 would be off by 0.007 radians at position 100,000.
    b_turns = tl.load(p_positions + token * stride_position).to(tl.float64) * (b_inv_freq * RADIAN)
    b_angle = (b_turns - tl.floor(b_turns + 0.5)).to(tl.float32) * TURN
    b_cos, b_sin = tl.cos(b_angle), tl.sin(b_angle)
    query_blocks: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    if i_block < query_blocks:
        p_token = p_query + token * stride_query
        rotate(p_token, i_block * BLOCK_H, HEADS, stride_query_h, b_cos, b_sin, HALF, BLOCK_H, BLOCK_R)
    else:
        p_token, i_first = p_key + token * stride_key, (i_block - query_blocks) * BLOCK_H
        rotate(p_token, i_first, KV_HEADS, stride_key_h, b_cos, b_sin, HALF, BLOCK_H, BLOCK_R)


def apply_rope(query: Tensor, key: Tensor, positions: Tensor, inv_freq: Tensor) -> None:
    (tokens, heads, _), kv_heads, half = query.shape, key.shape[1], inv_freq.shape[0]
    expect_no_double(OP, query, key)
    expect_last_contiguous(OP, query=query, key=key, inv_freq=inv_freq)
    if tokens == 0:
        return
    block_r = next_power_of_2(half)
    block_h = max(1, min(PAIRS // block_r, next_power_of_2(heads)))
    pdl = pdl_options(query.device)
    apply_rope_kernel[tokens, cdiv(heads, block_h) + cdiv(kv_heads, block_h)](
        p_query=query, p_key=key, p_positions=positions, p_inv_freq=inv_freq,
        stride_query=query.stride(0), stride_query_h=query.stride(1), stride_key=key.stride(0),
        stride_key_h=key.stride(1), stride_position=positions.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, HALF=half, BLOCK_H=block_h, BLOCK_R=block_r,
        USE_PDL=bool(pdl), num_warps=4, **pdl,
    )  # fmt: skip
