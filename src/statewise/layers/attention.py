"""Attention over the paged KV cache, with rotary position embedding of all, some or none of a head's channels."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from statewise.cache.paged_kv import PagedKV
from statewise.config import AttentionConfig
from statewise.layers.batch import Batch
from statewise.ops.apply_rope.frequencies import inverse_frequencies
from statewise.ops.apply_rope.torch import rotated
from statewise.ops.backend import Ops
from statewise.ops.paged_attention import Scratch
from statewise.ops.paged_attention.torch import attend


class Attention(nn.Module):
    """(L, hidden) -> (L, hidden). Parameter names and shapes are those of the released checkpoints."""

    def __init__(self, hidden_size: int, config: AttentionConfig, ops: Ops):
        super().__init__()
        self.config, self.ops = config, ops
        self.q_proj = nn.Linear(hidden_size, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, hidden_size, bias=False)
        self.inv_freq: Tensor | None = None
        self.qkv_weight: Tensor | None = None

    def prepare(self) -> None:
        """What no step changes, on the device of the weights. The three input projections become one product.

        Their weights are views of one tensor from then on. Where they are that already, nothing is copied.
        """
        self.inv_freq = self._inv_freq()
        self.qkv_weight = _joined([projection.weight.detach() for projection in self._inputs()])
        for projection, weight in zip(self._inputs(), self.qkv_weight.split(self._widths()), strict=True):
            projection.weight.data = weight

    def forward(self, hidden: Tensor, batch: Batch, kv: PagedKV, layer: int, scratch: Scratch | None = None) -> Tensor:
        """Stores this step's keys and values, then reads each row's own.

        layer: index among the attention layers.  scratch: of the rows that decode, for the backend that uses it; None:
        it allocates.
        """
        decode, scale = batch.decode_count, self.config.scale
        query, key, value = self._project(hidden)
        if (inv_freq := self._inv_freq()) is not None:
            self.ops.apply_rope(query, key, batch.positions, inv_freq)
        cache = kv.layer(layer)
        self.ops.store_kv(key, value, *cache, batch.kv_places)
        y = torch.empty_like(query, memory_format=torch.contiguous_format)
        if decode:
            rows = (batch.decode_tables, batch.decode_lengths)
            self.ops.paged_attention_step(query[:decode], *cache, *rows, scale=scale, out=y[:decode], scratch=scratch)
        if batch.prefill_count:
            chunks = (batch.cu_seqlens, batch.prefill_tables, batch.prefill_start)
            self.ops.paged_attention_prefill(query[decode:], *cache, *chunks, scale=scale, out=y[decode:])
        return self.o_proj(y.flatten(1))

    def whole(self, hidden: Tensor) -> Tensor:
        """(B, T, hidden), sequences of one length from their first token, nothing cached: the forward of training."""
        query, key, value = self._project(hidden)
        if (inv_freq := self._inv_freq()) is not None:
            positions = torch.arange(hidden.shape[-2], device=hidden.device)
            query, key = rotated(query, positions, inv_freq), rotated(key, positions, inv_freq)
        return self.o_proj(attend(query, key, value, self.config.scale, is_causal=True).flatten(-2))

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query (..., heads, head_dim), key and value (..., kv_heads, head_dim)."""
        head_dim = self.config.head_dim
        if self.qkv_weight is None:
            parts = [projection(hidden) for projection in self._inputs()]
        else:
            parts = list(linear(hidden, self.qkv_weight).split(self._widths(), dim=-1))
        query, key, value = (part.unflatten(-1, (-1, head_dim)) for part in parts)
        return query, key, value

    def _inputs(self) -> tuple[nn.Linear, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    def _widths(self) -> list[int]:
        return [projection.out_features for projection in self._inputs()]

    def _inv_freq(self) -> Tensor | None:
        """The frequencies of RoPE, (rotary_dim / 2,), or None without it."""
        rope = self.config.rope
        if rope is None or self.inv_freq is not None:
            return self.inv_freq
        return inverse_frequencies(rope.rotary_dim, rope.theta, self.q_proj.weight.device)


def _joined(weights: list[Tensor]) -> Tensor:
    """The rows of all, (rows, columns): a view where they lie one behind the other in memory, else a copy."""
    first, (rows, columns) = weights[0], (sum(weight.shape[0] for weight in weights), weights[0].shape[1])
    place = first.storage_offset()
    for weight in weights:
        here = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (here and weight.storage_offset() == place and weight.is_contiguous()):
            return torch.cat(weights)
        place += weight.numel()
    return first.as_strided((rows, columns), (columns, 1))
