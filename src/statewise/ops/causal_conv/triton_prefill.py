"""The causal convolution of a prefill on an NVIDIA GPU: one launch, a program a block of tokens and of channels."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# (tuples that grow in unrolled loops)

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.ssd_prefill.triton_kernels import find_block
from statewise.ops.triton_common import (
    cdiv,
    expect_last_contiguous,
    expect_no_double,
    next_power_of_2,
    pdl_options,
    silu,
    start,
)

UNROLL = 8  # tokens whose loads are in flight at once


@triton.jit
def fast_silu(b_x):
    """`silu` by the GPU's own exponential and reciprocal, each good to 2 units in the last place.

    5 instructions and not 12: a convolution is short enough to be bound by them.
    """
    b_e = tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [b_x * -1.4426950408889634], tl.float32, True, 1
    )
    return b_x * tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + b_e], tl.float32, True, 1)


@triton.jit(do_not_specialize=["p_cu_seqlens", "p_slots", "p_has_window", "sequences"])
def causal_conv_prefill_kernel(
    p_x, p_weight, p_bias, p_cu_seqlens, p_window, p_slots, p_has_window, p_y,
    sequences, channels, stride_x_l, stride_w_c, stride_w_k, stride_s_slot, stride_s_c, stride_s_k,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOTS: tl.constexpr, HAS_WINDOW: tl.constexpr, SILU: tl.constexpr,
    FAST: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, UNROLL: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Down the tokens, the last K - 1 inputs of each channel in registers, so that an input is loaded once.

    Only the first block of a sequence reads its old window, so that block writes the new one, after it has read.
    """
    start(USE_PDL, False)
    i_sequence, begin, end, i_block = find_block(p_cu_seqlens, tl.program_id(0), BLOCK_T, sequences)
    tokens, first = (end - begin).to(tl.int32), i_block.to(tl.int32) * BLOCK_T
    if (first > 0) & (first >= tokens):
        return
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    m_c = o_c < channels
    p_x += begin * stride_x_l + o_c
    p_y += begin * channels + o_c
    is_own, continues = True, False
    if HAS_SLOTS:
        slot = tl.load(p_slots + i_sequence).to(tl.int64)
        is_own = slot >= 0
        p_window += slot * stride_s_slot + o_c * stride_s_c
        if HAS_WINDOW:
            continues = is_own & (first == 0) & (tl.load(p_has_window + i_sequence) != 0)

    weights, past = (), ()
    for k in tl.static_range(K):
        b_w = tl.load(p_weight + o_c * stride_w_c + k * stride_w_k, mask=m_c, other=0.0)
        weights = weights + (b_w.to(tl.float32),)  # noqa: RUF005 - Triton has no unpacking
    for k in tl.static_range(K - 1):
        o_in = first - (K - 1) + k
        b_in = tl.load(p_x + o_in.to(tl.int64) * stride_x_l, mask=m_c & (o_in >= 0), other=0.0).to(tl.float32)
        if HAS_WINDOW:
            b_in += tl.load(p_window + k * stride_s_k, mask=m_c & continues, other=0.0).to(tl.float32)
        past = past + (b_in,)  # noqa: RUF005
    b_bias = tl.zeros([BLOCK_C], tl.float32)
    if HAS_BIAS:
        b_bias += tl.load(p_bias + o_c, mask=m_c, other=0.0).to(tl.float32)

    p_in = p_x + first.to(tl.int64) * stride_x_l
    p_out = p_y + first.to(tl.int64) * channels
    for o_t in range(first, tl.minimum(first + BLOCK_T, tokens), UNROLL):
        inputs = past
        for u in tl.static_range(UNROLL):
            b_new = tl.load(p_in + u * stride_x_l, mask=m_c & (o_t + u < tokens), other=0.0)
            inputs = inputs + (b_new.to(tl.float32),)  # noqa: RUF005
        for u in tl.static_range(UNROLL):
            b_y = b_bias
            for k in tl.static_range(K):
                b_y += weights[k] * inputs[u + k]
            if SILU:
                b_y = fast_silu(b_y) if FAST else silu(b_y)
            b_y = tl.where(is_own, b_y, 0.0)
            tl.store(p_out + u * channels, b_y.to(p_y.dtype.element_ty), mask=m_c & (o_t + u < tokens))
        past = inputs[UNROLL:]
        p_in += UNROLL * stride_x_l
        p_out += UNROLL * channels

    if HAS_SLOTS and K > 1:  # noqa: SIM102 - decided at compile time, the next line on the device
        if is_own & (first == 0):
            kept = ()
            for k in tl.static_range(K - 1):
                o_last = tokens - (K - 1) + k  # negative: in the old window
                b_last = tl.load(p_x + o_last.to(tl.int64) * stride_x_l, mask=m_c & (o_last >= 0), other=0.0)
                b_last = b_last.to(p_window.dtype.element_ty)
                if HAS_WINDOW:
                    m_old = m_c & continues & (o_last < 0)
                    b_last += tl.load(p_window + (tokens + k) * stride_s_k, mask=m_old, other=0.0)
                kept = kept + (b_last,)  # noqa: RUF005
            tl.debug_barrier()  # every thread has read the old window
            for k in tl.static_range(K - 1):
                tl.store(p_window + k * stride_s_k, kept[k], mask=m_c)


def launch_parameters(length: int, channels: int, width: int) -> tuple[int, int]:
    """(BLOCK_T, BLOCK_C) at one warp. From measurements on an H200; see docs/log.md.

    BLOCK_T covers the window: only a sequence's first block may reach into it.
    """
    block_t = 16 if length <= 2048 else 32 if length <= 16384 else 64
    return max(block_t, next_power_of_2(width)), min(128, max(32, next_power_of_2(channels)))


def causal_conv_prefill(
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor,
    bias: Tensor | None,
    window: Tensor | None,
    slots: Tensor | None,
    has_window: Tensor | None,
    activation: str | None,
) -> Tensor:
    expect_no_double("causal_conv_prefill", x, weight)
    expect_last_contiguous("causal_conv_prefill", x=x)
    (length, channels), width = x.shape, weight.shape[1]
    sequences = cu_seqlens.shape[0] - 1
    block_t, block_c = launch_parameters(length, channels, width)
    y = torch.empty((length, channels), dtype=x.dtype, device=x.device)
    pdl = pdl_options(x.device)
    causal_conv_prefill_kernel[length // block_t + sequences, cdiv(channels, block_c)](
        p_x=x,
        p_weight=weight,
        p_bias=bias,
        p_cu_seqlens=cu_seqlens,
        p_window=window,
        p_slots=slots,
        p_has_window=has_window,
        p_y=y,
        sequences=sequences,
        channels=channels,
        stride_x_l=x.stride(0),
        stride_w_c=weight.stride(0),
        stride_w_k=weight.stride(1),
        stride_s_slot=0 if window is None else window.stride(0),
        stride_s_c=0 if window is None else window.stride(1),
        stride_s_k=0 if window is None else window.stride(2),
        K=width,
        HAS_BIAS=bias is not None,
        HAS_SLOTS=slots is not None,
        HAS_WINDOW=has_window is not None,
        SILU=activation == "silu",
        FAST=x.device.type == "cuda",
        BLOCK_T=block_t,
        BLOCK_C=block_c,
        UNROLL=UNROLL,
        USE_PDL=bool(pdl),
        num_warps=1,
        **pdl,
    )
    return y
