"""The sort by PyTorch: about eight launches, none of which waits for the host."""

import torch
from torch import Tensor


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    found, order = chosen.flatten().sort(stable=True)
    every = torch.arange(experts, dtype=chosen.dtype, device=chosen.device)
    ends = torch.searchsorted(found, every, right=True, out_int32=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=chosen.device))
    return (order // chosen.shape[1]).to(chosen.dtype), places.view_as(chosen).to(chosen.dtype), ends
