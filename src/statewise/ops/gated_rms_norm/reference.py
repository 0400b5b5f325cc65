"""The gated norm, one row and one group at a time."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype


def gated_rms_norm(
    x: Tensor, z: Tensor | None, weight: Tensor | None, eps: float, group_size: int, norm_before_gate: bool
) -> Tensor:
    acc = accumulation_dtype(x)
    rows = x.reshape(-1, x.shape[-1]).to(acc)
    gates = torch.ones_like(rows)
    if z is not None:
        z = z.reshape(rows.shape).to(acc)
        gates = z / (1 + torch.exp(-z))
    out = torch.empty_like(rows)
    for row in range(rows.shape[0]):
        for begin in range(0, x.shape[-1], group_size):
            span = slice(begin, begin + group_size)
            value, gate = rows[row, span], gates[row, span]
            if weight is None:
                out[row, span] = value * gate
                continue
            value = value if norm_before_gate else value * gate
            mean_square = sum(float(v) ** 2 for v in value) / group_size
            value = value / (mean_square + eps) ** 0.5 * weight[span].to(acc)
            out[row, span] = value * gate if norm_before_gate else value
    return out.view(x.shape).to(x.dtype)
