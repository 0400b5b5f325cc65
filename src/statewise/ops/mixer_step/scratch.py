"""Memory that the launches of a mixer's step pass on to each other."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.ops.checkpointed_step.scratch import scratch_size


class Scratch(NamedTuple):
    """One set serves all layers of a stream, one after the other."""

    convolved: Tensor  # (B, H * P + 2 * G * N), activation dtype
    y: Tensor  # (B, H, P), activation dtype
    normed: Tensor  # (B, H * P), activation dtype: for the caller, who may have the result put there
    coefficients: Tensor  # float32, `scratch_size` of them

    @staticmethod
    def shapes(
        batch: int, heads: int, head_dim: int, groups: int, state_size: int, window: int, dtype: torch.dtype
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor, for up to ``batch`` rows. The first dimension grows with the batch alone."""
        return {
            "convolved": ((batch, heads * head_dim + 2 * groups * state_size), dtype),
            "y": ((batch, heads, head_dim), dtype),
            "normed": ((batch, heads * head_dim), dtype),
            "coefficients": ((scratch_size(batch, heads, window),), torch.float32),
        }

    @classmethod
    def size(
        cls, batch: int, heads: int, head_dim: int, groups: int, state_size: int, window: int, dtype: torch.dtype
    ) -> int:
        """Bytes for up to ``batch`` rows: ``batch`` times those of one."""
        shapes = cls.shapes(batch, heads, head_dim, groups, state_size, window, dtype)
        return sum(math.prod(shape) * kind.itemsize for shape, kind in shapes.values())

    @classmethod
    def allocate(
        cls,
        batch: int,
        heads: int,
        head_dim: int,
        groups: int,
        state_size: int,
        window: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "Scratch":
        """For up to ``batch`` rows."""
        shapes = cls.shapes(batch, heads, head_dim, groups, state_size, window, dtype)
        return cls(**{name: torch.empty(shape, dtype=kind, device=device) for name, (shape, kind) in shapes.items()})
