"""Attention over the paged KV cache, by PyTorch's scaled dot product attention. No position encoding."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from statewise.cache.paged_kv import PagedKV
from statewise.config import AttentionConfig
from statewise.layers.batch import Batch


class Attention(nn.Module):
    """(L, hidden) -> (L, hidden). Parameter names and shapes are those of the released checkpoints."""

    def __init__(self, hidden_size: int, config: AttentionConfig):
        super().__init__()
        self.config = config
        self.q_proj = nn.Linear(hidden_size, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, hidden_size, bias=False)

    def forward(self, hidden: Tensor, batch: Batch, kv: PagedKV, layer: int) -> Tensor:
        """layer: index among the attention layers. Stores this step's keys and values, then reads each row's own."""
        head_dim, decode = self.config.head_dim, batch.decode_count
        query, key, value = (
            proj(hidden).unflatten(-1, (-1, head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        kv.write(layer, batch.kv_places, key, value)
        parts = [self._decode(query[:decode], batch, kv, layer)] if decode else []
        edges = batch.cu_seqlens.tolist()
        for i, start in enumerate(batch.prefill_start.tolist()):
            own = query[decode + edges[i] : decode + edges[i + 1]]
            parts.append(self._prefill(own, start, batch.prefill_tables[i : i + 1], kv, layer))
        return self.o_proj(torch.cat(parts).flatten(1))

    def whole(self, hidden: Tensor) -> Tensor:
        """(B, T, hidden), sequences of one length from their first token, nothing cached: the forward of training."""
        query, key, value = (
            proj(hidden).unflatten(-1, (-1, self.config.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(_attend(query, key, value, is_causal=True).flatten(-2))

    def _decode(self, query: Tensor, batch: Batch, kv: PagedKV, layer: int) -> Tensor:
        """query: (D, heads, head_dim), each against the tokens of its own row."""
        keys, values = kv.read(layer, batch.decode_tables, batch.decode_lengths)
        seen = torch.arange(keys.shape[1], device=query.device) < batch.decode_lengths[:, None]
        return _attend(query[:, None], keys, values, seen[:, None, None])[:, 0]

    def _prefill(self, query: Tensor, start: int, table: Tensor, kv: PagedKV, layer: int) -> Tensor:
        """query: (T, heads, head_dim), the chunk of one row that follows ``start`` earlier tokens."""
        length = start + query.shape[0]
        keys, values = kv.read(layer, table, torch.tensor([length], device=query.device))
        keys, values = keys[:, :length], values[:, :length]
        seen = torch.ones(query.shape[0], length, dtype=torch.bool, device=query.device).tril(start)
        return _attend(query[None], keys, values, seen)[0]


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """query: (B, T, heads, head_dim); keys, values: (B, M, kv_heads, head_dim); mask: up to (B, heads, T, M)."""
    query, keys, values = (t.transpose(1, 2) for t in (query, keys, values))
    y = scaled_dot_product_attention(query, keys, values, mask, is_causal=is_causal, enable_gqa=True)
    return y.transpose(1, 2)
