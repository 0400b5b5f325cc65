"""The causal convolution, one token and one tap at a time."""

import itertools

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype


def _token(inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """One output. inputs, weight: (C, K), oldest first."""
    y = torch.zeros_like(inputs[:, 0]) if bias is None else bias.to(inputs.dtype)
    for k in range(weight.shape[1]):
        y = y + weight[:, k].to(inputs.dtype) * inputs[:, k]
    return y / (1 + torch.exp(-y)) if activation == "silu" else y


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
    acc = accumulation_dtype(x)
    out = torch.zeros_like(x)
    edges = cu_seqlens.tolist()
    for i, (begin, end) in enumerate(itertools.pairwise(edges)):
        slot = None if slots is None else int(slots[i])
        if slot is not None and slot < 0:
            continue
        past = torch.zeros(x.shape[1], weight.shape[1] - 1, dtype=acc, device=x.device)
        if window is not None and has_window is not None and has_window[i]:
            past = window[slot].to(acc)
        for t in range(begin, end):
            inputs = torch.cat([past, x[t].to(acc)[:, None]], 1)
            out[t] = _token(inputs, weight, bias, activation).to(x.dtype)
            past = inputs[:, 1:]
        if window is not None:
            window[slot] = past.to(window.dtype)
    return out


def causal_conv_step(
    x: Tensor, weight: Tensor, window: Tensor, slots: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:
    acc = accumulation_dtype(x)
    out = torch.zeros_like(x)
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        inputs = torch.cat([window[slot].to(acc), x[row].to(acc)[:, None]], 1)
        out[row] = _token(inputs, weight, bias, activation).to(x.dtype)
        window[slot] = inputs[:, 1:].to(window.dtype)
    return out
