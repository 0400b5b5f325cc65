"""What the caches of a model hold, in shapes and bytes. The same shapes size, allocate and report.

A spec allocates nothing. `MambaSpec` also says how many bytes a step moves, from counts of what was done: rows stepped,
ring rows replayed, states written.
"""

import math
from dataclasses import dataclass

import torch

from statewise.cache.window import ring_rows


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class MambaSpec:
    """The Mamba-2 layers of a model: H heads of P channels and N states, G groups, convolution width K, interval W."""

    layers: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_width: int
    checkpoint_interval: int
    state_dtype: torch.dtype
    activation_dtype: torch.dtype

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: x, B and C side by side."""
        return self.heads * self.head_dim + 2 * self.groups * self.state_size

    @property
    def ring_rows(self) -> int:
        """R, ring rows a slot; 0 for the plain step."""
        return ring_rows(self.checkpoint_interval)

    @property
    def dt_dtype(self) -> torch.dtype:
        """float32, or float64 beside float64 activations."""
        return torch.promote_types(self.activation_dtype, torch.float32)

    def slot_shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor, for one slot of one layer."""
        rows = self.ring_rows
        return {
            "state": ((self.heads, self.head_dim, self.state_size), self.state_dtype),
            "conv_window": ((self.conv_width - 1, self.conv_channels), self.activation_dtype),  # a tap's side by side
            "x_ring": ((self.heads, rows, self.head_dim), self.activation_dtype),
            "B_ring": ((self.groups, rows, self.state_size), self.activation_dtype),
            "dt_ring": ((self.heads, rows), self.dt_dtype),
        }

    @property
    def tracker_bytes(self) -> int:
        """Bytes of a slot's ``ring_start`` and ``pending``, one pair for all layers."""
        return 2 * torch.int32.itemsize

    @property
    def bytes_per_slot(self) -> int:
        """Bytes stored for one request, all layers."""
        return self.layers * sum(_bytes(*spec) for spec in self.slot_shapes().values()) + self.tracker_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of one request's state, all layers: what a plain step reads, and writes."""
        return self.layers * _bytes(*self.slot_shapes()["state"])

    @property
    def ring_row_bytes(self) -> int:
        """Bytes of one ring row (x, B, dt), all layers."""
        x = self.heads * self.head_dim * self.activation_dtype.itemsize
        B = self.groups * self.state_size * self.activation_dtype.itemsize
        return self.layers * (x + B + self.heads * self.dt_dtype.itemsize)

    @property
    def conv_window_bytes(self) -> int:
        """Bytes of one request's convolution window, all layers."""
        return self.layers * _bytes(*self.slot_shapes()["conv_window"])

    def bytes_moved(self, *, steps: int, state_writes: int, replayed: int) -> int:
        """Bytes of cache that decode reads and writes.

        steps: rows stepped (one token of one request each).  state_writes: states written, all layers together counting
        once.  replayed: ring rows read, likewise. Every step reads the state, and reads and writes the window; with a
        ring it also writes one row and reads its trackers.
        """
        return self.bytes_read(steps, replayed) + self.bytes_written(steps, state_writes)

    def bytes_read(self, steps: int, replayed: int) -> int:
        """Those of `bytes_moved` that are read."""
        trackers = self.tracker_bytes if self.ring_rows else 0
        return steps * (self.state_bytes + self.conv_window_bytes + trackers) + replayed * self.ring_row_bytes

    def bytes_written(self, steps: int, state_writes: int) -> int:
        """Those of `bytes_moved` that are written."""
        row = self.ring_row_bytes if self.ring_rows else 0
        return steps * (self.conv_window_bytes + row) + state_writes * self.state_bytes


@dataclass(frozen=True, kw_only=True)
class KVSpec:
    """The attention layers of a model: a paged cache with a block size of its own, whatever the size of a state."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    def pool_shape(self, blocks: int) -> tuple[int, ...]:
        """(layers, 2, blocks, block_size, kv_heads, head_dim): keys and values."""
        return (self.layers, 2, blocks, self.block_size, self.kv_heads, self.head_dim)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, all layers, keys and values."""
        return _bytes(self.pool_shape(1), self.dtype)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values, all layers."""
        return self.bytes_per_block // self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens of one request; 0 for a model without attention."""
        return -(-tokens // self.block_size) if self.layers else 0
