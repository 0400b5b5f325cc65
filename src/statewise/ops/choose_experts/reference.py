"""One token after the other, in float64."""

import math

import torch
from torch import Tensor


def choose_experts(
    scores: Tensor,
    chosen: int,
    bias: Tensor | None,
    allowed: Tensor | None,
    normalised: bool,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    weights = torch.empty(len(scores), chosen, dtype=dtype, device=scores.device)
    experts = torch.empty(len(scores), chosen, dtype=torch.int64, device=scores.device)
    for row, found in enumerate(scores.tolist()):
        if bias is None:
            own, keys = found, found
        else:
            own = [1 / (1 + math.exp(-score)) for score in found]
            keys = [s + b for s, b in zip(own, bias.tolist(), strict=True)]
        open_ones = [i for i in range(len(keys)) if allowed is None or bool(allowed[row, i])]
        best = sorted(open_ones, key=lambda i: (-keys[i], i))[:chosen]
        values = [own[i] for i in best]
        if bias is None:
            values = [math.exp(value - max(values)) for value in values]
            values = [value / sum(values) for value in values]
        else:
            total = sum(values) + 1e-20 if normalised else 1.0
            values = [value / total * scale for value in values]
        weights[row] = torch.tensor(values, dtype=torch.float64)
        experts[row] = torch.tensor(best)
    return weights, experts
