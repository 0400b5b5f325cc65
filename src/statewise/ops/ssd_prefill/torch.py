"""Prefill as a chunked scan, vectorised over every chunk of every sequence. The README beside this derives it.

`ssd_prefill` cuts a packed batch, `ssd_rows` rows of one length; both do the same sums on chunks already cut.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.ops.common import NO_LIMIT, accumulation_dtype, finish, time_step

CHUNK = 64  # tokens, where the caller leaves it open


def _within(x: Tensor, step: Tensor, total: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """What chunks do by themselves: their part of the outputs (..., q, P), what they add to the state (..., P, N).

    x: (..., q, P).  step: (..., q) time steps.  total: (..., q), the log of the decay since the start of the chunk.
    B, C: (..., q, N), broadcast against the heads of x.
    """
    length = x.shape[-2]
    causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    gap = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -torch.inf)
    mix = gap.exp() * step[..., None, :] * (C @ B.mT)
    tail = (total[..., -1:] - total).exp() * step
    return mix @ x, x.mT @ (tail[..., None] * B)


def _from_entering(total: Tensor, C: Tensor, entering: Tensor) -> Tensor:
    """The other part of the outputs, (..., q, P): of the states that enter the chunks, (..., P, N)."""
    return (total.exp()[..., None] * C) @ entering.mT


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


def _pass_along_rows(own: Tensor, log_decay: Tensor) -> Tensor:
    """The state that enters each chunk of a row, from zeros. own: (..., chunks, P, N), log_decay: (..., chunks).

    One matrix product over the chunks of a row: entering_i = sum of exp(decay of chunks j + 1 to i - 1) own_j, j < i.
    Logarithms are summed from j on, not subtracted as sums from the start, which would lose digits.
    """
    chunks = log_decay.shape[-1]
    before = torch.ones(chunks, chunks, dtype=torch.bool, device=own.device).tril(-1)  # j < i
    previous = torch.nn.functional.pad(log_decay, (1, -1))[..., :, None]  # of chunk i - 1
    gap = previous.expand(*log_decay.shape, chunks).masked_fill(~before.tril(-2), 0).cumsum(-2)
    weight = gap.masked_fill(~before, -torch.inf).exp()
    return (weight @ own.flatten(-2)).unflatten(-1, own.shape[-2:])


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
    y, final = _scan(x, dt, A, B, C, cu_seqlens, start, D, z, dt_bias, dt_limit, chunk_size or CHUNK)
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
    total = (A.to(acc)[:, None] * step).cumsum(-1)
    grouped = total.view(*by_group, q)
    xs = chunked(x).reshape(*by_group, q, head_dim)
    Bs, Cs = chunked(B)[:, :, None], chunked(C)[:, :, None]  # (c, G, 1, q, N)

    y, own = _within(xs, step.view(*by_group, q), grouped, Bs, Cs)
    own = own.reshape(c, heads, head_dim, state_size)
    entering, final = _pass_states(chunks, own, total[..., -1].exp(), start)
    y = y + _from_entering(grouped, Cs, entering.view(*by_group, head_dim, state_size))

    tokens = y.reshape(c, heads, q, head_dim).movedim(2, 1)[chunks.live]  # (L, H, P), in order
    return finish(tokens, x.to(acc), D, z).to(x.dtype), final


def ssd_rows(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_limit: tuple[float, float] = NO_LIMIT,
    chunk_size: int = CHUNK,
) -> Tensor:
    """The scan of training: rows of one length from zeros, of which only the outputs are asked.

    x: (rows, T, H, P), T at least 1.  dt: (rows, T, H), raw.  B, C: (rows, T, G, N).  The rest as in `ssd_prefill`.
    Returns y like x. Shapes follow from shapes alone: it never waits for the device, and torch.compile traces it.
    """
    length, groups = x.shape[1], B.shape[2]
    acc, size = accumulation_dtype(x), min(chunk_size, length)
    chunks = -(-length // size)

    def cut(t: Tensor) -> Tensor:  # (rows, T, K, ...) -> (rows, K, chunks, q, ...), zeros behind the end
        if chunks * size > length:
            t = torch.nn.functional.pad(t, (0, 0) * (t.dim() - 2) + (0, chunks * size - length))
        return t.unflatten(1, (chunks, size)).movedim(3, 1).to(acc, memory_format=torch.contiguous_format)

    step = cut(time_step(dt, dt_bias, dt_limit, acc)).unflatten(1, (groups, -1))  # (rows, G, H / G, chunks, q)
    total = (A.to(acc).view(groups, -1, 1, 1) * step).cumsum(-1)
    xs, Bs, Cs = cut(x).unflatten(1, (groups, -1)), cut(B)[:, :, None], cut(C)[:, :, None]

    y, own = _within(xs, step, total, Bs, Cs)
    y = y + _from_entering(total, Cs, _pass_along_rows(own, total[..., -1]))
    tokens = y.flatten(1, 2).movedim(1, 3).flatten(1, 2)[:, :length]
    return finish(tokens, x.to(acc), D, None).to(x.dtype, memory_format=torch.contiguous_format)
