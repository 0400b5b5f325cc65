"""Paged attention by PyTorch's scaled dot product attention over gathered blocks. For CPUs and float64."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from statewise.ops.paged_attention.scratch import Scratch


def paged_attention_step(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    scale: float,
    out: Tensor | None,
    scratch: Scratch | None,  # of no use here
) -> Tensor:
    live = _live(block_tables, keys, lengths)
    own_keys, own_values = _gather(keys, block_tables, live), _gather(values, block_tables, live)
    seen = live | (lengths == 0)[:, None]  # a padded row sees its zeros: a softmax over nothing is NaN
    y = attend(query[:, None], own_keys, own_values, scale, seen[:, None, None])[:, 0]
    return y if out is None else out.copy_(y)


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
    """A row at a time: their lengths decide shapes, so on a GPU this waits for the host, once."""
    out = torch.empty_like(query) if out is None else out
    edges, befores = cu_seqlens.tolist(), starts.tolist()
    for row, (first, end, before) in enumerate(zip(edges[:-1], edges[1:], befores, strict=True)):
        if first == end:
            continue
        length = before + end - first
        table = block_tables[row : row + 1, : -(-length // keys.shape[1])]
        live = _live(table, keys, starts.new_tensor([length]))
        own_keys, own_values = (_gather(pages, table, live)[:, :length] for pages in (keys, values))
        seen = torch.ones(end - first, length, dtype=torch.bool, device=query.device).tril(before)
        out[first:end] = attend(query[None, first:end], own_keys, own_values, scale, seen)[0]
    return out


def store_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    live = places >= 0
    place = places[live]
    where = (place // keys.shape[1], place % keys.shape[1])
    keys[where], values[where] = key[live].to(keys.dtype), value[live].to(values.dtype)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """query: (B, T, heads, head_dim); keys, values: (B, M, kv_heads, head_dim); mask: up to (B, heads, T, M)."""
    query, keys, values = (t.transpose(1, 2) for t in (query, keys, values))
    y = scaled_dot_product_attention(query, keys, values, mask, is_causal=is_causal, scale=scale, enable_gqa=True)
    return y.transpose(1, 2)


def _live(tables: Tensor, pages: Tensor, lengths: Tensor) -> Tensor:
    """(B, M * block_size), which places of each row hold a token."""
    return torch.arange(tables.shape[1] * pages.shape[1], device=lengths.device) < lengths[:, None]


def _gather(pages: Tensor, tables: Tensor, live: Tensor) -> Tensor:
    """(B, M * block_size, kv_heads, head_dim), zeros behind a row's tokens: NaN may be there."""
    rows = pages[torch.where(live[:, :: pages.shape[1]], tables, 0)].flatten(1, 2)
    return torch.where(live[..., None, None], rows, 0)
