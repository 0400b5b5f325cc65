"""The plain step, one row and one head at a time."""

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype, finish, time_step
from statewise.ops.rounding import to_stored


def recur(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """One token of one sequence. state: (H, P, N); x: (H, P); dt, A: (H,); B, C: (G, N). Returns y and the state."""
    heads_per_group = x.shape[0] // B.shape[0]
    new, y = torch.empty_like(state), torch.empty_like(x)
    for h in range(x.shape[0]):
        g = h // heads_per_group
        new[h] = torch.exp(A[h] * dt[h]) * state[h] + dt[h] * torch.outer(x[h], B[g])
        y[h] = new[h] @ C[g]
    return y, new


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
    acc = accumulation_dtype(x, state)
    step = time_step(dt, dt_bias, dt_limit, acc)
    out = torch.zeros_like(x)
    for row, (src, dst) in enumerate(zip(read_slots.tolist(), write_slots.tolist(), strict=True)):
        if src < 0 or dst < 0:
            continue
        x_row, B_row, C_row = x[row].to(acc), B[row].to(acc), C[row].to(acc)
        y, new = recur(state[src].to(acc), x_row, step[row], A.to(acc), B_row, C_row)
        state[dst] = to_stored(new[None], state.dtype, write_slots[row : row + 1], rand_seed, rand_layer)[0]
        out[row] = finish(y, x_row, D, None if z is None else z[row]).to(x.dtype)
    return out
