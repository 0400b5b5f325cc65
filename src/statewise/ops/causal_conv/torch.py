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
