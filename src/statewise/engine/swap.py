"""Requests that are swapped out: copies of their slots and KV blocks on the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.cache.host import to_device
from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.engine.request import Request
from statewise.engine.step import Eviction


class SwapSpace:
    """Saves and restores in the order in which it is asked, among the steps; neither waits for the device.

    What a request keeps: its state, rings, convolution window, trackers, keys and values. What it does not need: its
    newest token and its token counts, which the host knows by the time that it comes back.
    """

    def __init__(self, mamba: MambaPool, kv: PagedKV):
        self._mamba, self._kv = mamba, kv
        self._kept: dict[Request, tuple[list[Tensor], Tensor | None]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now."""
        slots = sum(tensor.nbytes for slot, _ in self._kept.values() for tensor in slot)
        return slots + sum(blocks.nbytes for _, blocks in self._kept.values() if blocks is not None)

    def save(self, evictions: Sequence[Eviction]) -> None:
        """Copy what these requests leave behind."""
        for evicted in evictions:
            blocks = self._kv.save(self._index(evicted.blocks)) if evicted.blocks else None
            self._kept[evicted.request] = self._mamba.save(evicted.slot), blocks

    def restore(self, requests: Sequence[Request]) -> None:
        """Copy it back, to the slots and blocks that these requests have now."""
        for request in requests:
            assert request.slot is not None
            slot, blocks = self._kept.pop(request)
            self._mamba.restore(request.slot, slot)
            if blocks is not None:
                self._kv.restore(self._index(request.blocks[: blocks.shape[2]]), blocks)

    def drop(self, request: Request) -> None:
        """Keep nothing of a request that has ended. No effect if nothing is kept of it."""
        self._kept.pop(request, None)

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return to_device(blocks, torch.int64, self._kv.pool.device)
