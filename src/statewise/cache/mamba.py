"""The Mamba pool: states, rings, convolution windows and trackers of all slots, allocated from one spec."""

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.cache.host import host_empty
from statewise.cache.spec import MambaSpec

# With poison on, the trackers of slots that belong to nobody: no ring has such a row.
SPOILED_TRACKER = -(2**30)


class MambaLayerCache(NamedTuple):
    """What one layer's mixer reads and writes: its pages of the pool. Shapes: the table in the design."""

    state: Tensor
    conv_window: Tensor
    x_ring: Tensor
    B_ring: Tensor
    dt_ring: Tensor
    ring_start: Tensor
    pending: Tensor
    checkpoint_interval: int
    rand_seed: Tensor | None  # (1,), int64: states are rounded stochastically; None: to nearest
    layer_index: int


class MambaPool:
    """Tensors only; who owns a slot is `Places`' business, and only the runner writes the trackers.

    ``state``, ``conv_window``, ``x_ring``, ``B_ring``, ``dt_ring``: (layers, S, ...), shapes from the spec.
    ``ring_start``, ``pending``: (S,), int32, one pair for all layers.
    """

    def __init__(
        self,
        spec: MambaSpec,
        slots: int,
        device: torch.device,
        poison: bool = False,
        rand_seed: Tensor | None = None,
    ):
        """poison: fill with NaN what no request has written yet, and again whatever is freed.

        rand_seed: (1,), int64, for layers that round their states stochastically; the runner's, not counted here.
        """
        self.spec = spec
        self.slots = slots
        self.poison = poison
        self.rand_seed = rand_seed
        self._tensors = {
            name: torch.full((spec.layers, slots, *shape), torch.nan if poison else 0.0, dtype=dtype, device=device)
            for name, (shape, dtype) in spec.slot_shapes().items()
        }
        self.state, self.conv_window = self._tensors["state"], self._tensors["conv_window"]
        self.x_ring, self.B_ring, self.dt_ring = (self._tensors[name] for name in ("x_ring", "B_ring", "dt_ring"))
        self.ring_start = torch.zeros(slots, dtype=torch.int32, device=device)
        self.pending = torch.zeros(slots, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes allocated; equal to ``slots * spec.bytes_per_slot``."""
        tensors = [*self._tensors.values(), self.ring_start, self.pending]
        return sum(tensor.nbytes for tensor in tensors)

    def layer(self, index: int) -> MambaLayerCache:
        """The pages of Mamba layer ``index``, as views."""
        pages = {name: tensor[index] for name, tensor in self._tensors.items()}
        pages["conv_window"] = pages["conv_window"].mT  # (S, channels, K - 1)
        return MambaLayerCache(
            **pages,
            ring_start=self.ring_start,
            pending=self.pending,
            checkpoint_interval=self.spec.checkpoint_interval,
            rand_seed=self.rand_seed,
            layer_index=index,
        )

    def clear_rings(self, slots: Tensor) -> None:
        """Zero the rings of ``slots``, (n,), for a step that multiplies dead rows by zero instead of selecting."""
        for tensor in (self.x_ring, self.B_ring, self.dt_ring):
            tensor.index_fill_(1, slots, 0)

    def tensors(self) -> tuple[list[Tensor], list[int]]:
        """All that makes up a slot, and which dimension of each counts the slots: what `move_slots` asks for."""
        return [*self._tensors.values(), self.ring_start, self.pending], [1] * len(self._tensors) + [0, 0]

    def save(self, slot: int) -> list[Tensor]:
        """A copy of a slot on the host, trackers included. Neither the host nor the device waits for it."""
        return [
            *(self._save(tensor[:, slot]) for tensor in self._tensors.values()),
            *(self._save(tracker[slot : slot + 1]) for tracker in (self.ring_start, self.pending)),
        ]

    def restore(self, slot: int, saved: list[Tensor]) -> None:
        """Write what `save` has returned to any slot, likewise without waiting."""
        pages = [tensor[:, slot] for tensor in self._tensors.values()]
        pages += [tracker[slot : slot + 1] for tracker in (self.ring_start, self.pending)]
        for page, copy in zip(pages, saved, strict=True):
            for own, kept in zip(page, copy, strict=True):
                own.copy_(kept, non_blocking=True)

    @staticmethod
    def _save(page: Tensor) -> Tensor:
        """Layer by layer: each is dense, so that nothing is gathered in memory of its own before it goes."""
        copy = host_empty(page.shape, page.dtype, page.device)
        for kept, own in zip(copy, page, strict=True):
            kept.copy_(own, non_blocking=True)
        return copy

    def forget(self, slots: list[int]) -> None:
        """With poison on, spoil freed slots. Without it, nothing: a new owner reads only what it wrote."""
        if self.poison and slots:
            for tensor in self._tensors.values():
                tensor[:, slots] = torch.nan
            self.ring_start[slots] = self.pending[slots] = SPOILED_TRACKER

    def is_forgotten(self, slots: list[int]) -> bool:
        """With poison on: whether nobody has written to these slots since they were freed. Waits for the device."""
        tracked = [(tracker[slots] == SPOILED_TRACKER).all() for tracker in (self.ring_start, self.pending)]
        pages = [page[slots].isnan().all() for tensor in self._tensors.values() for page in tensor]
        return bool(torch.stack([*tracked, *pages]).all())
