"""The RMS norm of a block. The gated norm of a mixer is an op: `statewise.ops.gated_rms_norm`."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """``x / rms(x) * weight * scale`` over the last dimension, in float32 (float64 if x is), in the weight's dtype."""

    def __init__(self, size: int, eps: float, scale: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.scale = eps, scale

    def forward(self, x: Tensor) -> Tensor:
        acc = torch.promote_types(x.dtype, torch.float32)
        weight = self.weight.to(acc) if self.scale == 1 else self.weight.to(acc) * self.scale
        y = nn.functional.rms_norm(x.to(acc), self.weight.shape, weight, self.eps)
        return y.to(self.weight.dtype)
