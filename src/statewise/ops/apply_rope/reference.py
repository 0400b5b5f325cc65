"""RoPE as complex numbers, one pair of channels at a time."""

import cmath

from torch import Tensor


def apply_rope(query: Tensor, key: Tensor, positions: Tensor, inv_freq: Tensor) -> None:
    half = inv_freq.shape[0]
    for x in (query, key):
        for token, position in enumerate(positions.tolist()):
            for head in x[token]:
                for i, frequency in enumerate(inv_freq.tolist()):
                    pair = complex(float(head[i]), float(head[i + half])) * cmath.exp(1j * position * frequency)
                    head[i], head[i + half] = pair.real, pair.imag
