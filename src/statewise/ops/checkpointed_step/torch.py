"""The checkpointed step as two products: the checkpoint read once, and a small causal mix of ring and new rows."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype, finish, time_step
from statewise.ops.fold_pending.torch import folded
from statewise.ops.rounding import to_stored


def checkpointed_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    read_slots: Tensor,
    write_slots: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    rand_seed: Tensor | None,
    rand_layer: int,
) -> Tensor:
    rows = ((read_slots >= 0) & (write_slots >= 0)).nonzero().squeeze(1)
    out = torch.zeros_like(x)
    if rows.numel() == 0:
        return out
    acc = accumulation_dtype(x, state)
    b, (_, tokens, heads, head_dim), groups = rows.numel(), x.shape, B.shape[2]
    own = write_slots[rows].long()
    start, live = ring_start[own].long(), pending[own].long()
    step = time_step(dt[rows], dt_bias, dt_limit, acc)

    old = int(live.max())
    place = (start[:, None] + torch.arange(old + tokens, device=x.device)) % x_ring.shape[2]
    is_live = torch.arange(old, device=x.device) < live[:, None]

    def joined(ring: Tensor, new: Tensor) -> Tensor:  # (b, old + T, K, ...): live ring rows oldest first, then the new
        kept = ring[own[:, None], :, place[:, :old]]
        kept = torch.where(is_live.view(b, old, *[1] * (kept.dim() - 2)), kept, 0)
        return torch.cat([kept.to(acc), new.to(acc)], 1)

    dts = joined(dt_ring, step).mT  # (b, H, M) with M = old + T; a dead row has dt = 0: it decays and adds nothing
    xs = joined(x_ring, x[rows]).movedim(1, 2).reshape(b, groups, heads // groups, old + tokens, head_dim)
    Bs = joined(B_ring, B[rows]).movedim(1, 2)[:, :, None]  # (b, G, 1, M, N)
    Cs = C[rows].to(acc).movedim(1, 2)[:, :, None]  # (b, G, 1, T, N)
    total = (A.to(acc)[:, None] * dts).cumsum(-1)  # the log of the decay since the checkpoint

    causal = torch.ones(tokens, old + tokens, dtype=torch.bool, device=x.device).tril(old)
    gap = (total[:, :, old:, None] - total[:, :, None]).masked_fill(~causal, -torch.inf)
    mix = (gap.exp() * dts[:, :, None]).view(b, groups, -1, tokens, old + tokens) * (Cs @ Bs.mT)
    checkpoint = state[read_slots[rows]].to(acc).view(b, groups, heads // groups, head_dim, -1)
    y = mix @ xs + total[:, :, old:].exp().view(b, groups, -1, tokens, 1) * (Cs @ checkpoint.mT)
    y = y.reshape(b, heads, tokens, head_dim).movedim(2, 1)
    out[rows] = finish(y, x[rows].to(acc), D, None if z is None else z[rows]).to(x.dtype)

    full = (live + tokens > window).nonzero().squeeze(1)
    if full.numel():
        pending_rows = (xs[full, ..., :old, :], Bs[full, ..., :old, :], dts[full, :, :old], total[full, :, :old])
        new = folded(checkpoint[full], *pending_rows).flatten(1, 2)
        state[own[full]] = to_stored(new, state.dtype, own[full], rand_seed, rand_layer)

    fresh = (start[:, None] + live[:, None] + torch.arange(tokens, device=x.device)) % x_ring.shape[2]
    x_ring[own[:, None], :, fresh] = x[rows].to(x_ring.dtype)
    B_ring[own[:, None], :, fresh] = B[rows].to(B_ring.dtype)
    dt_ring[own[:, None], :, fresh] = step.to(dt_ring.dtype)
    return out
