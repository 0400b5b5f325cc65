"""Memory for what the splits of a row's tokens pass on to the kernel that combines them, and how long a split is."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

SPLIT = 256  # tokens of a split at most, as long as a row has no more than MAX_SPLITS of them
MAX_SPLITS = 16  # of a row; a longer row has longer splits
PIECE = 64  # the length of a row's splits is a multiple of it: about the same for all of them


def most_splits(tokens: int) -> int:
    """Splits of a row of up to ``tokens`` tokens, at least 1."""
    return max(1, min(MAX_SPLITS, -(-tokens // SPLIT)))


class Scratch(NamedTuple):
    """One set serves all attention layers of a stream, one after the other."""

    partial: Tensor  # (D, heads, splits, head_dim), float32: weighted sums of values
    stats: Tensor  # (D, heads, splits, 2), float32: log2 of the largest weight, and the sum of weights over it

    @staticmethod
    def shapes(batch: int, heads: int, head_dim: int, tokens: int) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor, for up to ``batch`` rows of up to ``tokens`` tokens."""
        rows = (batch, heads, most_splits(tokens))
        return {"partial": (*rows, head_dim), "stats": (*rows, 2)}

    @classmethod
    def size(cls, batch: int, heads: int, head_dim: int, tokens: int) -> int:
        """Bytes for up to ``batch`` rows: ``batch`` times those of one."""
        shapes = cls.shapes(batch, heads, head_dim, tokens)
        return sum(math.prod(shape) * torch.float32.itemsize for shape in shapes.values())

    @classmethod
    def allocate(cls, batch: int, heads: int, head_dim: int, tokens: int, device: torch.device) -> "Scratch":
        """For up to ``batch`` rows of up to ``tokens`` tokens."""
        shapes = cls.shapes(batch, heads, head_dim, tokens)
        return cls(**{name: torch.empty(shape, dtype=torch.float32, device=device) for name, shape in shapes.items()})
