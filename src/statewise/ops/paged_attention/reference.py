"""Paged attention, one token and one head at a time, in float64."""

import math

import torch
from torch import Tensor

from statewise.ops.paged_attention.scratch import Scratch


def paged_attention_step(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    scale: float,
    out: Tensor | None,
    scratch: Scratch | None,
) -> Tensor:
    out = torch.empty_like(query) if out is None else out
    for row, length in enumerate(lengths.tolist()):
        out[row] = _attend(query[row], keys, values, block_tables[row].tolist(), length, scale)
    return out


def paged_attention_prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cu_seqlens: Tensor,
    block_tables: Tensor,
    starts: Tensor,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    out = torch.empty_like(query) if out is None else out
    edges = cu_seqlens.tolist()
    for row, start in enumerate(starts.tolist()):
        for token in range(edges[row], edges[row + 1]):
            length = start + token - edges[row] + 1
            out[token] = _attend(query[token], keys, values, block_tables[row].tolist(), length, scale)
    return out


def store_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    for token, place in enumerate(places.tolist()):
        if place >= 0:
            keys[divmod(place, keys.shape[1])] = key[token].to(keys.dtype)
            values[divmod(place, keys.shape[1])] = value[token].to(values.dtype)


def _attend(query: Tensor, keys: Tensor, values: Tensor, table: list[int], length: int, scale: float) -> Tensor:
    """query: (heads, head_dim). Returns the same, in float64."""
    y = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    block_size, group = keys.shape[1], query.shape[0] // keys.shape[2]
    places = [(table[t // block_size], t % block_size) for t in range(length)]
    for head in range(query.shape[0] if length else 0):
        own = query[head].double()
        scores = [scale * float(own @ keys[place][head // group].double()) for place in places]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        for weight, place in zip(weights, places, strict=True):
            y[head] += weight / sum(weights) * values[place][head // group].double()
    return y
