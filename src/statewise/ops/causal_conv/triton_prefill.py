"""The causal convolution of a prefill on an NVIDIA GPU: one launch, a program a block of tokens and of channels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.ssd_prefill.triton_kernels import find_block
from statewise.ops.triton_common import expect_last_contiguous, expect_no_double, silu


@triton.jit
def convolve(
    p_x, p_weight, p_bias, o_t, o_c, tokens, channels, stride_x_l, stride_w_c, stride_w_k,
    K: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Tokens ``o_t`` by channels ``o_c`` of the sequence whose first token is at ``p_x``; zeros before it."""
    m_c = o_c < channels
    b_y = tl.zeros([o_t.shape[0], o_c.shape[0]], tl.float32)
    if HAS_BIAS:
        b_y += tl.load(p_bias + o_c, mask=m_c, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(K):
        o_in = o_t - (K - 1 - k)
        m_in = ((o_in >= 0) & (o_t < tokens))[:, None] & m_c[None, :]
        b_in = tl.load(p_x + o_in.to(tl.int64)[:, None] * stride_x_l + o_c[None, :], mask=m_in, other=0.0)
        b_w = tl.load(p_weight + o_c * stride_w_c + k * stride_w_k, mask=m_c, other=0.0)
        b_y += b_w.to(tl.float32)[None, :] * b_in.to(tl.float32)
    return b_y


@triton.jit
def causal_conv_prefill_kernel(
    p_x, p_weight, p_bias, p_cu_seqlens, p_window, p_slots, p_has_window, p_y,
    sequences, channels, stride_x_l, stride_w_c, stride_w_k, stride_s_slot, stride_s_c, stride_s_k,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOTS: tl.constexpr, HAS_WINDOW: tl.constexpr, SILU: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Only the first block of a sequence reads its old window, so that block writes the new one, after it has read."""
    i_sequence, begin, end, i_block = find_block(p_cu_seqlens, tl.program_id(0), BLOCK_T, sequences)
    tokens, first = (end - begin).to(tl.int32), i_block.to(tl.int32) * BLOCK_T
    if (first > 0) & (first >= tokens):
        return
    o_t = first + tl.arange(0, BLOCK_T)  # since the sequence's first token
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    m_c = o_c < channels
    p_x += begin * stride_x_l
    p_y += begin * channels
    p_out = p_y + o_t.to(tl.int64)[:, None] * channels + o_c[None, :]
    done = 0  # tokens that the old window reaches
    if HAS_SLOTS:
        slot = tl.load(p_slots + i_sequence).to(tl.int64)
        if slot < 0:
            tl.store(p_out, tl.zeros([BLOCK_T, BLOCK_C], p_y.dtype.element_ty), (o_t < tokens)[:, None] & m_c[None, :])
            return
        p_window += slot * stride_s_slot + o_c[None, :] * stride_s_c
        if HAS_WINDOW:
            done = tl.where(tl.load(p_has_window + i_sequence) != 0, K - 1, 0)

    b_y = convolve(
        p_x, p_weight, p_bias, o_t, o_c, tokens, channels, stride_x_l, stride_w_c, stride_w_k, K, HAS_BIAS
    )  # fmt: skip
    b_y = silu(b_y) if SILU else b_y
    m_out = ((o_t >= done) & (o_t < tokens))[:, None] & m_c[None, :]
    tl.store(p_out, b_y.to(p_y.dtype.element_ty), mask=m_out)
    if HAS_SLOTS:  # noqa: SIM102 - decided at compile time, the next line on the device
        if first == 0:
            o_k = tl.arange(0, BLOCK_K)
            m_k = (o_k < K - 1)[:, None] & m_c[None, :]
            if HAS_WINDOW:
                b_head = convolve(
                    p_x, p_weight, p_bias, o_k, o_c, tokens, channels, stride_x_l, stride_w_c, stride_w_k, K, HAS_BIAS
                )  # fmt: skip
                for k in tl.static_range(K - 1):
                    m_old = (o_k + k < done)[:, None] & m_c[None, :]
                    b_old = tl.load(p_window + (o_k + k)[:, None] * stride_s_k, mask=m_old, other=0.0)
                    b_w = tl.load(p_weight + o_c * stride_w_c + k * stride_w_k, mask=m_c, other=0.0)
                    b_head += b_w.to(tl.float32)[None, :] * b_old.to(tl.float32)
                b_head = silu(b_head) if SILU else b_head
                m_head = (o_k < tl.minimum(done, tokens))[:, None] & m_c[None, :]
                tl.store(p_y + o_k[:, None] * channels + o_c[None, :], b_head.to(p_y.dtype.element_ty), mask=m_head)
            o_in = tokens - (K - 1) + o_k  # negative: in the old window
            p_in = p_x + o_in.to(tl.int64)[:, None] * stride_x_l + o_c[None, :]
            b_new = tl.load(p_in, mask=m_k & (o_in >= 0)[:, None], other=0.0).to(p_window.dtype.element_ty)
            if HAS_WINDOW:
                m_old = m_k & ((o_in < 0) & (done > 0))[:, None]
                b_new += tl.load(p_window + (K - 1 + o_in)[:, None] * stride_s_k, mask=m_old, other=0.0)
            tl.debug_barrier()  # every thread has read the old window
            tl.store(p_window + o_k[:, None] * stride_s_k, b_new, mask=m_k)


def launch_parameters(length: int, width: int) -> tuple[int, int]:
    """(BLOCK_T, BLOCK_C) at 4 warps. BLOCK_T covers the window: only a sequence's first block may reach into it."""
    return max(16, triton.next_power_of_2(width)), 128


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
    block_t, block_c = launch_parameters(length, width)
    y = torch.empty((length, channels), dtype=x.dtype, device=x.device)
    causal_conv_prefill_kernel[length // block_t + sequences, triton.cdiv(channels, block_c)](
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
        BLOCK_T=block_t,
        BLOCK_C=block_c,
        BLOCK_K=triton.next_power_of_2(width),
        num_warps=4,
    )
    return y
