"""The choice by PyTorch: a stable sort, so that equal scores are chosen in order, which topk does not promise."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype


def choose_experts(
    scores: Tensor,
    chosen: int,
    bias: Tensor | None,
    allowed: Tensor | None,
    normalised: bool,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    own = scores.to(accumulation_dtype(scores))
    own = own if bias is None else own.sigmoid()
    keys = own if bias is None else own + bias.to(own.dtype)
    keys = keys if allowed is None else keys.where(allowed, -torch.inf)
    experts = keys.sort(dim=-1, descending=True, stable=True).indices[:, :chosen]
    weights = own.gather(-1, experts)
    if bias is None:
        return weights.softmax(-1).to(dtype), experts
    if normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return (weights * scale).to(dtype), experts
