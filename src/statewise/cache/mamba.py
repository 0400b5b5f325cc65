"""The Mamba pool: states, rings, convolution windows and trackers of all slots, allocated from one spec."""

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.cache.spec import MambaSpec


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
            tensor[:, slots] = 0

    def forget(self, slots: list[int]) -> None:
        """With poison on, fill freed slots with NaN. Without it, nothing: a new owner reads only what it wrote."""
        if self.poison and slots:
            for tensor in self._tensors.values():
                tensor[:, slots] = torch.nan
