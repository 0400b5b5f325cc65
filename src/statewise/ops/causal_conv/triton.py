"""The convolution on an NVIDIA GPU. In a step, a program takes some channels of one row and reads their inputs once.

Windows and weights are read a tap at a time: fastest where the channels of a tap lie side by side.
"""

# mypy: disable-error-code="assignment"
# (tuples that grow in unrolled loops)

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.causal_conv.triton_prefill import causal_conv_prefill
from statewise.ops.common import expect
from statewise.ops.triton_common import (
    cdiv,
    expect_last_contiguous,
    expect_no_double,
    next_power_of_2,
    pdl_options,
    silu,
    start,
    wait,
)

__all__ = ["causal_conv_prefill", "causal_conv_step"]


@triton.jit
def load_taps(p_window, p_weight, o_c, m_c, stride_s_c, stride_s_k, stride_w_c, stride_w_k, K: tl.constexpr):
    """The K - 1 inputs that are kept, oldest first, and the K weights; each a block of channels."""
    past, weights = (), ()
    for k in tl.static_range(K - 1):
        past = past + (tl.load(p_window + o_c * stride_s_c + k * stride_s_k, mask=m_c, other=0.0),)  # noqa: RUF005
    for k in tl.static_range(K):
        b_weight = tl.load(p_weight + o_c * stride_w_c + k * stride_w_k, mask=m_c, other=0.0)
        weights = weights + (b_weight.to(tl.float32),)  # noqa: RUF005
    return past, weights


@triton.jit
def convolve(
    past, weights, b_new, p_window, p_bias, o_c, m_c, m_own, stride_s_c, stride_s_k,
    K: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """The new token's channels, float32; the window moves on by one place."""
    b_y = weights[K - 1] * b_new.to(tl.float32)
    for k in tl.static_range(K - 1):
        b_y += weights[k] * past[k].to(tl.float32)
    if HAS_BIAS:
        b_y += tl.load(p_bias + o_c, mask=m_c, other=0.0).to(tl.float32)
    tl.debug_barrier()  # every thread has its inputs; each of them but the oldest moves one place down
    for k in tl.static_range(K - 1):
        b_kept = past[k + 1] if k + 1 < K - 1 else b_new.to(p_window.dtype.element_ty)
        tl.store(p_window + o_c * stride_s_c + k * stride_s_k, b_kept, mask=m_own)
    return b_y


@triton.jit
def causal_conv_step_kernel(
    p_x, p_weight, p_window, p_slots, p_bias, p_out,
    channels, stride_x, stride_out, stride_w_c, stride_w_k, stride_s_slot, stride_s_c, stride_s_k, stride_slots,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr, USE_PDL: tl.constexpr, PREFETCH: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, PREFETCH)
    row = tl.program_id(1).to(tl.int64)
    i_slot = tl.load(p_slots + row * stride_slots).to(tl.int64)
    o_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    m_c = o_c < channels
    m_own = m_c & (i_slot >= 0)
    p_window += i_slot * stride_s_slot
    past, weights = load_taps(
        p_window, p_weight, o_c, m_own, stride_s_c, stride_s_k, stride_w_c, stride_w_k, K
    )  # fmt: skip
    if PREFETCH:
        wait(USE_PDL)
    b_x = tl.load(p_x + row * stride_x + o_c, mask=m_own, other=0.0)
    b_y = convolve(past, weights, b_x, p_window, p_bias, o_c, m_c, m_own, stride_s_c, stride_s_k, K, HAS_BIAS)
    if HAS_SILU:
        b_y = silu(b_y)
    b_y = tl.where(m_own, b_y, 0.0)
    tl.store(p_out + row * stride_out + o_c, b_y.to(p_out.dtype.element_ty), mask=m_c)


def launch_parameters(channels: int) -> tuple[int, int]:
    """(BLOCK_C, num_warps): 8 channels a thread."""
    block = min(1024, max(32, next_power_of_2(channels)))
    return block, max(1, block // 256)


def causal_conv_step(
    x: Tensor,
    weight: Tensor,
    window: Tensor,
    slots: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out: Tensor | None = None,
    prefetch: bool = False,
) -> Tensor:
    (batch, channels), width = x.shape, weight.shape[1]
    expect_no_double("causal_conv_step", x, window)
    expect_last_contiguous("causal_conv_step", x=x, bias=bias, out=out)
    expect(batch <= 65535, "causal_conv_step", f"{batch} rows, the triton backend takes up to 65535")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if out.numel() == 0:
        return out
    pdl = pdl_options(x.device)
    block_c, num_warps = launch_parameters(channels)
    causal_conv_step_kernel[(cdiv(channels, block_c), batch)](
        p_x=x, p_weight=weight, p_window=window, p_slots=slots, p_bias=bias, p_out=out,
        channels=channels, stride_x=x.stride(0), stride_out=out.stride(0),
        stride_w_c=weight.stride(0), stride_w_k=weight.stride(1),
        stride_s_slot=window.stride(0), stride_s_c=window.stride(1), stride_s_k=window.stride(2),
        stride_slots=slots.stride(0), K=width, HAS_BIAS=bias is not None, HAS_SILU=activation == "silu",
        BLOCK_C=block_c, num_warps=num_warps, PREFETCH=prefetch, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return out
