"""The plain step, vectorised over rows and heads. Heads are viewed as (G, H / G), so B and C are never expanded."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype, finish, time_step
from statewise.ops.rounding import to_stored


def state_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
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
    acc = accumulation_dtype(x, state)
    _, heads, head_dim = x.shape
    grouped = (rows.numel(), B.shape[1], heads // B.shape[1])

    x_rows = x[rows].to(acc)
    step = time_step(dt[rows], dt_bias, dt_limit, acc)
    decay = torch.exp(A.to(acc) * step)
    weighted = (step[..., None] * x_rows).view(*grouped, head_dim, 1)
    new = decay[..., None, None] * state[read_slots[rows]].to(acc)
    new.view(*grouped, *new.shape[2:]).addcmul_(weighted, B[rows].to(acc)[:, :, None, None, :])
    state[write_slots[rows]] = to_stored(new, state.dtype, write_slots[rows], rand_seed, rand_layer)

    y = new.view(*grouped[:2], grouped[2] * head_dim, new.shape[-1]) @ C[rows].to(acc)[..., None]
    out = torch.zeros_like(x)
    out[rows] = finish(y.view_as(x_rows), x_rows, D, None if z is None else z[rows]).to(x.dtype)
    return out
