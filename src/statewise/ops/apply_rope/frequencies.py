"""The frequencies of RoPE."""

import torch
from torch import Tensor


def inverse_frequencies(rotary_dim: int, theta: float, device: torch.device | None = None) -> Tensor:
    """``theta ** (-2 i / rotary_dim)`` for i < rotary_dim / 2, (rotary_dim / 2,), float64: radians a position."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    return theta**-exponents
