"""The linear layer, one number at a time."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, out: Tensor | None) -> Tensor:
    acc = accumulation_dtype(x)
    y = torch.empty(x.shape[0], weight.shape[0], dtype=acc, device=x.device)
    for row in range(x.shape[0]):
        for column in range(weight.shape[0]):
            value = (x[row].to(acc) * weight[column].to(acc)).sum() + (0 if bias is None else bias[column].to(acc))
            y[row, column] = value.clamp(min=0) ** 2 if activation == "relu2" else value
    y = y.to(x.dtype)
    return y if out is None else out.copy_(y)
