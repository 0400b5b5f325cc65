"""Prefill as a chunked scan, vectorised over every chunk of every sequence. The README beside this derives it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.ops.common import accumulation_dtype, finish, time_step


@dataclass(frozen=True)
class _Chunks:
    """How a packed batch falls into chunks: c chunks of Q tokens, in the order of the tokens."""

    token: Tensor  # (c, Q) index into the packed tokens; 0 where there is none
    live: Tensor  # (c, Q) bool
    first: Tensor  # (sequences,) the first chunk of each sequence
    count: Tensor  # (sequences,)


def _cut(cu_seqlens: Tensor, chunk_size: int) -> _Chunks:
    edges = cu_seqlens.long()
    lengths = edges.diff()
    count = (lengths + chunk_size - 1) // chunk_size
    first = count.cumsum(0) - count
    owner = torch.repeat_interleave(torch.arange(len(count), device=edges.device), count)
    within = torch.arange(len(owner), device=edges.device) - first[owner]
    position = (edges[owner] + within * chunk_size)[:, None] + torch.arange(chunk_size, device=edges.device)
    live = position < edges[owner + 1][:, None]
    return _Chunks(torch.where(live, position, 0), live, first, count)


def _pass_states(chunks: _Chunks, own: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Carry the state from chunk to chunk. own: (c, H, P, N), decay: (c, H), state: (sequences, H, P, N) at the start.

    Returns the state that enters each chunk (c, H, P, N) and the final states.
    """
    entering, order = [own[:0]], [chunks.first[:0]]
    for k in range(int(chunks.count.max()) if len(chunks.count) else 0):
        alive = (chunks.count > k).nonzero().squeeze(1)
        chunk = chunks.first[alive] + k
        entering.append(state[alive])
        order.append(chunk)
        state = state.index_copy(0, alive, decay[chunk][..., None, None] * state[alive] + own[chunk])
    return torch.cat(entering)[torch.cat(order).argsort()], state


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
    sequences = len(cu_seqlens) - 1
    if state is not None and slots is not None and has_initial_state is not None:
        has_initial_state = has_initial_state & (slots >= 0)
        initial_states = state[slots.clamp(min=0)]
    start = x.new_zeros(sequences, *x.shape[1:], B.shape[-1], dtype=acc)
    if initial_states is not None:
        start = initial_states.to(acc)
        if has_initial_state is not None:
            start = torch.where(has_initial_state[:, None, None, None], start, 0)
    y, final = _scan(x, dt, A, B, C, cu_seqlens, start, D, z, dt_bias, dt_limit, chunk_size or 64)
    if state is None or slots is None:
        return y, final
    is_own = slots >= 0
    state[slots[is_own]] = final[is_own].to(state.dtype)
    owner = torch.repeat_interleave(torch.arange(sequences, device=x.device), cu_seqlens.long().diff())
    return torch.where(is_own[owner][:, None, None], y, 0), state


def _scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    cu_seqlens: Tensor,
    start: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Outputs and final states from the states at the start (sequences, H, P, N), in whose dtype all sums are."""
    length, heads, head_dim = x.shape
    groups, state_size = B.shape[1:]
    acc = start.dtype
    if length == 0:
        return torch.zeros_like(x), start.clone()

    longest = int(cu_seqlens.diff().max())
    chunks = _cut(cu_seqlens, min(chunk_size, longest))
    c, q = chunks.token.shape
    by_group = (c, groups, heads // groups)

    def chunked(t: Tensor) -> Tensor:  # (L, K, ...) -> (c, K, q, ...), zeros where a chunk has no token
        live = chunks.live.view(c, q, *[1] * (t.dim() - 1))
        return torch.where(live, t[chunks.token], 0).to(acc).movedim(1, 2)

    step = chunked(time_step(dt, dt_bias, dt_limit, acc))  # (c, H, q)
    total = (A.to(acc)[:, None] * step).cumsum(-1)  # the log of the decay since the start of the chunk
    xs = chunked(x).reshape(*by_group, q, head_dim)
    Bs, Cs = chunked(B)[:, :, None], chunked(C)[:, :, None]  # (c, G, 1, q, N)

    causal = torch.ones(q, q, dtype=torch.bool, device=x.device).tril()
    gap = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -torch.inf)
    mix = (gap.exp() * step[..., None, :]).view(*by_group, q, q) * (Cs @ Bs.mT)
    y = mix @ xs  # (c, G, H / G, q, P)

    tail = ((total[..., -1:] - total).exp() * step).view(*by_group, q, 1)
    own = ((tail * xs).mT @ Bs).reshape(c, heads, head_dim, state_size)
    entering, final = _pass_states(chunks, own, total[..., -1].exp(), start)
    y = y + total.exp().view(*by_group, q, 1) * (Cs @ entering.view(*by_group, head_dim, state_size).mT)

    tokens = y.reshape(c, heads, q, head_dim).movedim(2, 1)[chunks.live]  # (L, H, P), in order
    return finish(tokens, x.to(acc), D, z).to(x.dtype), final
