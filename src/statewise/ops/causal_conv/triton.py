"""The convolution on an NVIDIA GPU. In a step, a program takes some channels of one row and reads their inputs once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.causal_conv.triton_prefill import causal_conv_prefill
from statewise.ops.common import expect
from statewise.ops.triton_common import expect_last_contiguous, expect_no_double, pdl_options, silu, start, wait

__all__ = ["causal_conv_prefill", "causal_conv_step"]


@triton.jit
def causal_conv_step_kernel(
    p_x, p_weight, p_window, p_slots, p_bias, p_out,
    channels, stride_x, stride_weight, stride_slot, stride_channel, stride_tap,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr, USE_PDL: tl.constexpr, PREFETCH: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, PREFETCH)
    row = tl.program_id(1).to(tl.int64)
    i_slot = tl.load(p_slots + row).to(tl.int64)
    is_live = i_slot >= 0
    o_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    o_k = tl.arange(0, BLOCK_K)
    m_c = o_c < channels
    m_own = m_c & is_live
    m_past = m_own[:, None] & (o_k < K - 1)[None, :]

    # The K inputs of a channel side by side, oldest first: K - 1 from the window, then the new one.
    p_past = p_window + i_slot * stride_slot + o_c[:, None] * stride_channel + o_k[None, :] * stride_tap
    b_past = tl.load(p_past, mask=m_past, other=0.0).to(tl.float32)
    m_weight = m_c[:, None] & (o_k < K)[None, :]
    b_weight = tl.load(p_weight + o_c[:, None] * stride_weight + o_k[None, :], mask=m_weight, other=0.0)
    if PREFETCH:
        wait(USE_PDL)
    b_x = tl.load(p_x + row * stride_x + o_c, mask=m_own, other=0.0).to(tl.float32)
    b_in = tl.where((o_k == K - 1)[None, :], b_x[:, None], b_past)
    b_y = tl.sum(b_in * b_weight.to(tl.float32), axis=1)
    if HAS_BIAS:
        b_y += tl.load(p_bias + o_c, mask=m_c, other=0.0).to(tl.float32)
    if HAS_SILU:
        b_y = silu(b_y)
    b_y = tl.where(m_own, b_y, 0.0)
    tl.store(p_out + row * channels + o_c, b_y.to(p_out.dtype.element_ty), mask=m_c)

    tl.debug_barrier()  # every thread has read its inputs; each of them but the oldest moves one place down
    m_kept = m_own[:, None] & ((o_k >= 1) & (o_k < K))[None, :]
    tl.store(p_past - stride_tap, b_in.to(p_window.dtype.element_ty), mask=m_kept)


def launch_parameters(channels: int, width: int) -> tuple[int, int, int]:
    """(BLOCK_C, BLOCK_K, num_warps): 1024 inputs a program, 8 a thread."""
    block_k = triton.next_power_of_2(width)
    block_c = min(triton.next_power_of_2(channels), max(32, 1024 // block_k))
    return block_c, block_k, max(1, min(8, block_c * block_k // 256))


def causal_conv_step(
    x: Tensor,
    weight: Tensor,
    window: Tensor,
    slots: Tensor,
    bias: Tensor | None,
    activation: str | None,
    prefetch: bool = False,
) -> Tensor:
    (batch, channels), width = x.shape, weight.shape[1]
    expect_no_double("causal_conv_step", x, window)
    expect_last_contiguous("causal_conv_step", x=x, weight=weight, slots=slots, bias=bias)
    expect(batch <= 65535, "causal_conv_step", f"{batch} rows, the triton backend takes up to 65535")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    pdl = pdl_options(x.device)
    block_c, block_k, num_warps = launch_parameters(channels, width)
    causal_conv_step_kernel[(triton.cdiv(channels, block_c), batch)](
        p_x=x, p_weight=weight, p_window=window, p_slots=slots, p_bias=bias, p_out=out,
        channels=channels, stride_x=x.stride(0), stride_weight=weight.stride(0),
        stride_slot=window.stride(0), stride_channel=window.stride(1), stride_tap=window.stride(2),
        K=width, HAS_BIAS=bias is not None, HAS_SILU=activation == "silu",
        BLOCK_C=block_c, BLOCK_K=block_k, num_warps=num_warps, PREFETCH=prefetch, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return out
