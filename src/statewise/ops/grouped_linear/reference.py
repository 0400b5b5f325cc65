"""One row after the other, in float64."""

import torch
from torch import Tensor


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    y = rows.new_empty(rows.shape[0], weight.shape[1])
    for row in range(rows.shape[0]):
        group = sum(end <= row for end in ends.tolist())
        y[row] = torch.mv(weight[group].double(), rows[row].double())
    return y
