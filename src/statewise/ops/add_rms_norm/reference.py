"""Add and norm, one row at a time."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype


def add_rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    acc = accumulation_dtype(residual)
    total = residual.clone() if update is not None else residual
    normed = torch.empty_like(residual, dtype=weight.dtype)
    for row in range(residual.shape[0]):
        if update is not None:
            total[row] = (residual[row].to(acc) + update[row].to(acc)).to(residual.dtype)
        value = total[row].to(acc)
        mean_square = sum(float(v) ** 2 for v in value) / len(value)
        normed[row] = (value / (mean_square + eps) ** 0.5 * weight.to(acc)).to(weight.dtype)
    return normed, total
