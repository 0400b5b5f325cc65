"""The causal convolution as K shifted products over one buffer, in which each sequence follows its own window."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype


def _finish(y: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    if bias is not None:
        y = y + bias.to(y.dtype)
    return torch.nn.functional.silu(y) if activation == "silu" else y


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
    (length, channels), reach = x.shape, weight.shape[1] - 1
    acc = accumulation_dtype(x)
    edges = cu_seqlens.long()
    sequences = len(edges) - 1
    owner = torch.repeat_interleave(torch.arange(sequences, device=x.device), edges.diff())
    token = torch.arange(length, device=x.device) + (owner + 1) * reach  # where each token lies in the buffer
    taps = torch.arange(reach, device=x.device)

    past = x.new_zeros(sequences, reach, channels)
    if window is not None and slots is not None and has_window is not None:
        continues = has_window & (slots >= 0)
        kept = window[slots.clamp(min=0)].mT.to(x.dtype)
        past = torch.where(continues[:, None, None], kept, past)
    buffer = x.new_zeros(length + sequences * reach, channels)
    first = edges[:-1] + torch.arange(sequences, device=x.device) * reach
    buffer = buffer.index_copy(0, (first[:, None] + taps).flatten(), past.flatten(0, 1))
    buffer = buffer.index_copy(0, token, x)

    y = x.new_zeros(length, channels, dtype=acc)
    for k in range(reach + 1):
        y = y + weight[:, k].to(acc) * buffer[token - reach + k].to(acc)
    y = _finish(y, bias, activation).to(x.dtype)
    if window is None or slots is None:
        return y
    own = (slots >= 0).nonzero().squeeze(1)
    end = edges[1:] + torch.arange(1, sequences + 1, device=x.device) * reach
    window[slots[own]] = buffer[(end[:, None] - reach + taps)[own]].mT.to(window.dtype)
    return torch.where((slots >= 0)[owner][:, None], y, 0)


def causal_conv_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = "silu") -> Tensor:
    """The convolution of training: rows of one length, each from zeros, nothing kept.

    x: (rows, T, C).  weight: (C, K).  bias: (C,) or None.  activation: "silu" or None.  Returns y like x; sums are
    float32 (float64 if x is). Shifted views of one buffer, so that a compiler makes one pass of it.
    """
    length, width, acc = x.shape[1], weight.shape[1], accumulation_dtype(x)
    buffer = torch.nn.functional.pad(x, (0, 0, width - 1, 0))
    taps = weight.to(acc).unbind(1)
    y = taps[0] * buffer[:, :length]
    for k in range(1, width):
        y = torch.addcmul(y, taps[k], buffer[:, k : k + length].to(acc))
    return _finish(y, bias, activation).to(x.dtype)


def causal_conv_step(
    x: Tensor, weight: Tensor, window: Tensor, slots: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:
    rows = (slots >= 0).nonzero().squeeze(1)
    acc = accumulation_dtype(x)
    inputs = torch.cat([window[slots[rows]].to(acc), x[rows].to(acc)[..., None]], -1)
    window[slots[rows]] = inputs[..., 1:].to(window.dtype)
    out = torch.zeros_like(x)
    out[rows] = _finish((inputs * weight.to(acc)).sum(-1), bias, activation).to(x.dtype)
    return out
