"""Memory that the launches of a mixer's step pass on to each other."""

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
        return cls(
            torch.empty(batch, heads * head_dim + 2 * groups * state_size, dtype=dtype, device=device),
            torch.empty(batch, heads, head_dim, dtype=dtype, device=device),
            torch.empty(batch, heads * head_dim, dtype=dtype, device=device),
            torch.empty(scratch_size(batch, heads, window), dtype=torch.float32, device=device),
        )
