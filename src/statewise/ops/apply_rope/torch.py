"""RoPE, vectorised."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype


def apply_rope(query: Tensor, key: Tensor, positions: Tensor, inv_freq: Tensor) -> None:
    rotary_dim = 2 * inv_freq.shape[0]
    for x in (query, key):
        x[..., :rotary_dim] = _rotated(x[..., :rotary_dim], positions, inv_freq)


def rotated(x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
    """`apply_rope` of one tensor into a new one, differentiable. x: (..., L, heads, D)."""
    rotary_dim = 2 * inv_freq.shape[0]
    return torch.cat([_rotated(x[..., :rotary_dim], positions, inv_freq), x[..., rotary_dim:]], -1)


def _rotated(x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
    """x: (..., L, heads, R)."""
    acc = accumulation_dtype(x)
    angle = (positions.double()[:, None] * inv_freq)[:, None]  # (L, 1, R / 2)
    cos, sin = angle.cos().to(acc), angle.sin().to(acc)
    first, second = x.to(acc).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
