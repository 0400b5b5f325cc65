"""The paged KV cache: keys and values in blocks, found through a block table a request."""

import torch
from torch import Tensor

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

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store a key and a value a token, each (L, kv_heads, head_dim). places: (L,), block * block_size + offset."""
        flat = self.pool[layer].flatten(1, 2)
        flat[0, places], flat[1, places] = keys, values

    def read(self, layer: int, block_table: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of each row's first ``length`` tokens, zeros behind them.

        block_table: (B, M); length: (B,), at most M * block_size. Returns two (B, M * block_size, kv_heads,
        head_dim). What lies behind a row's length is replaced, not multiplied: it may be NaN.
        """
        live = torch.arange(block_table.shape[1] * self.spec.block_size, device=length.device) < length[:, None]
        both = self.pool[layer][:, block_table].flatten(2, 3)
        keys, values = torch.where(live[..., None, None], both, 0)
        return keys, values

    def forget(self, blocks: list[int]) -> None:
        """With poison on, fill freed blocks with NaN."""
        if self.poison and blocks:
            self.pool[:, :, blocks] = torch.nan
