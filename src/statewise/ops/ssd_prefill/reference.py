"""Prefill, one token at a time: the recurrence itself."""

import itertools

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype, finish, time_step
from statewise.ops.state_step.reference import recur


def ssd_prefill(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    cu_seqlens: Tensor,
    initial_states: Tensor | None,
    has_initial_state: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    acc = accumulation_dtype(x, initial_states)
    step = time_step(dt, dt_bias, dt_limit, acc)
    edges = cu_seqlens.tolist()
    finals = torch.zeros(len(edges) - 1, *x.shape[1:], B.shape[-1], dtype=acc, device=x.device)
    out = torch.zeros_like(x)
    for i, (begin, end) in enumerate(itertools.pairwise(edges)):
        if initial_states is not None and (has_initial_state is None or has_initial_state[i]):
            finals[i] = initial_states[i].to(acc)
        for t in range(begin, end):
            y, finals[i] = recur(finals[i], x[t].to(acc), step[t], A.to(acc), B[t].to(acc), C[t].to(acc))
            out[t] = finish(y, x[t].to(acc), D, None if z is None else z[t]).to(x.dtype)
    return out, finals
