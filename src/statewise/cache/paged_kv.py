"""The paged KV cache: keys and values in blocks, found through a block table a request."""

import torch
from torch import Tensor

from statewise.cache.host import host_empty
from statewise.cache.spec import KVSpec


class PagedKV:
    """Keys and values of all attention layers. Who owns a block is `Places`' business.

    ``pool``: (layers, 2, blocks, block_size, kv_heads, head_dim).
    """

    def __init__(self, spec: KVSpec, blocks: int, device: torch.device, poison: bool = False):
        """poison: fill with NaN what no request has written yet, and again whatever is freed."""
        self.spec = spec
        self.blocks = blocks
        self.poison = poison
        fill = torch.nan if poison else 0.0
        self.pool = torch.full(spec.pool_shape(blocks), fill, dtype=spec.dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes allocated; equal to ``blocks * spec.bytes_per_block``."""
        return self.pool.nbytes

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of an attention layer, views of (blocks, block_size, kv_heads, head_dim)."""
        keys, values = self.pool[index]
        return keys, values

    def save(self, blocks: Tensor) -> Tensor:
        """A copy of ``blocks``, (n,), on the host: (layers, 2, n, ...). The host does not wait for it."""
        layers, two, _, *rest = self.pool.shape
        copy = host_empty((layers, two, len(blocks), *rest), self.pool.dtype, self.pool.device)
        for kept, layer in zip(copy, self.pool, strict=True):
            kept.copy_(layer.index_select(1, blocks), non_blocking=True)
        return copy

    def restore(self, blocks: Tensor, saved: Tensor) -> None:
        """Write what `save` has returned to any ``blocks``, (n,), likewise without waiting."""
        for layer, kept in zip(self.pool, saved, strict=True):
            layer.index_copy_(1, blocks, kept.to(layer.device, non_blocking=True))

    def is_forgotten(self, blocks: list[int]) -> bool:
        """With poison on: whether nobody has written to these blocks since they were freed. Waits for the device."""
        return all(bool(layer[:, blocks].isnan().all()) for layer in self.pool)

    def forget(self, blocks: list[int]) -> None:
        """With poison on, fill freed blocks with NaN."""
        if self.poison and blocks:
            self.pool[:, :, blocks] = torch.nan
