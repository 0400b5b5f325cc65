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
    state: Tensor | None,
    slots: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    acc = accumulation_dtype(x, initial_states if state is None else state)
    step = time_step(dt, dt_bias, dt_limit, acc)
    edges = cu_seqlens.tolist()
    finals = torch.zeros(len(edges) - 1, *x.shape[1:], B.shape[-1], dtype=acc, device=x.device)
    out = torch.zeros_like(x)
    for i, (begin, end) in enumerate(itertools.pairwise(edges)):
        slot = i if slots is None else int(slots[i])
        if slot < 0:
            continue
        source = initial_states if state is None else state
        has_all = state is None and has_initial_state is None
        if source is not None and (has_all or (has_initial_state is not None and has_initial_state[i])):
            finals[i] = source[slot].to(acc)
        for t in range(begin, end):
            y, finals[i] = recur(finals[i], x[t].to(acc), step[t], A.to(acc), B[t].to(acc), C[t].to(acc))
            out[t] = finish(y, x[t].to(acc), D, None if z is None else z[t]).to(x.dtype)
        if state is not None:
            state[slot] = finals[i].to(state.dtype)
    return out, finals if state is None else state
