"""Folding as one product: the decayed checkpoint, and an outer product a pending row."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype
from statewise.ops.rounding import to_stored


def fold_pending(
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    A: Tensor,
    slots: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    rand_seed: Tensor | None,
    rand_layer: int,
) -> None:
    acc, row = accumulation_dtype(state, x_ring), torch.arange(window, device=state.device)
    place = (ring_start[slots].long()[:, None] + row) % x_ring.shape[2]
    is_live = row < pending[slots][:, None]

    def oldest_first(ring: Tensor) -> Tensor:  # (n, heads or groups, W, ...); dead rows are zeros, dt among them
        rows = ring[slots[:, None], :, place]
        return torch.where(is_live.view(*place.shape, *[1] * (rows.dim() - 2)), rows, 0).to(acc).movedim(1, 2)

    split, dts = (B_ring.shape[1], -1), oldest_first(dt_ring)
    xs, Bs = oldest_first(x_ring).unflatten(1, split), oldest_first(B_ring)[:, :, None]
    total = (A.to(acc)[:, None] * dts).cumsum(-1)
    new = folded(state[slots].to(acc).unflatten(1, split), xs, Bs, dts, total).flatten(1, 2)
    state[slots] = to_stored(new, state.dtype, slots, rand_seed, rand_layer)


def folded(checkpoint: Tensor, xs: Tensor, Bs: Tensor, dts: Tensor, total: Tensor) -> Tensor:
    """The state after M rows: (n, G, H / G, P, N), as the checkpoint.

    xs: (n, G, H / G, M, P).  Bs: (n, G, 1, M, N).  dts, total: (n, H, M), time steps and the log of the decay since the
    checkpoint.
    """
    split, last = checkpoint.shape[1:3], total[..., -1]
    weight = ((last[..., None] - total).exp() * dts).unflatten(1, split)
    decay = last.exp().unflatten(1, split)
    return decay[..., None, None] * checkpoint + (weight[..., None] * xs).mT @ Bs
