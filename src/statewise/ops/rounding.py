"""Stochastic rounding of 16-bit states: counter-based random words, and the rounding that they decide.

The words are Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011). Their
counter says which element of which state is written, so every backend draws the same ones, whatever its tiles are.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.config import is_int
from statewise.ops.common import expect, expect_shape

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MOST_LAYERS = 2**31


class Format(NamedTuple):
    """A 16-bit float, by its bits without the sign, and how it lies beside float32."""

    mantissa_bits: int
    least_exponent: int  # float32's exponent field of its smallest normal number
    largest: int
    infinity: int
    nan: int
    infinite_from: int  # the float32 bits from which round-to-nearest gives infinity


FORMATS = {
    torch.float16: Format(10, 113, 0x7BFF, 0x7C00, 0x7E00, 0x477FF000),
    torch.bfloat16: Format(7, 1, 0x7F7F, 0x7F80, 0x7FC0, 0x7F7F8000),
}


def expect_rounding(op: str, state: Tensor, rand_seed: Tensor | None, rand_layer: int) -> None:
    """Raise ArgumentError unless ``rand_seed`` is None or can round ``state``."""
    possible = is_int(rand_layer) and 0 <= rand_layer < _MOST_LAYERS
    expect(possible, op, f"rand_layer is {rand_layer!r}, expected a whole number, 0 to {_MOST_LAYERS - 1}")
    if rand_seed is None:
        return
    expect_shape(op, rand_seed=(rand_seed, (1,)))
    expect(rand_seed.dtype == torch.int64, op, f"rand_seed is {rand_seed.dtype}, expected torch.int64")
    where = f"rand_seed is on {rand_seed.device}, expected {state.device}, where the state is"
    expect(rand_seed.device == state.device, op, where)
    rounds = state.dtype in FORMATS
    expect(rounds, op, f"a rand_seed is given for a {state.dtype} state; only float16 and bfloat16 are rounded")


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Philox4x32-10. counter, key: 32-bit words held in int64, any shapes that broadcast.

    Returns four words for each counter, (..., 4), int64, 0 to 2^32 - 1.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product may pass 2^63: its bits are right all the same, and the mask drops what the shift brings in.
        wide0, wide2 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (wide2 >> 32) & _WORD ^ c1 ^ k0, (wide0 >> 32) & _WORD ^ c3 ^ k1
        c1, c3 = wide2 & _WORD, wide0 & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), -1)


def page_words(rand_seed: Tensor, rand_layer: int, slots: Tensor, shape: torch.Size) -> Tensor:
    """The word of every element of the states that are written to ``slots``.

    rand_seed: (1,), int64; its halves are the key.  slots: (B,).  shape: (H, P, N).  Elements 4 q to 4 q + 3 of a
    slot's page, in index order, get the four words of counter (q, slot, rand_layer, 0).

    Returns (B, H, P, N), int64.
    """
    count = math.prod(shape)
    quadruple = torch.arange(-(-count // 4), device=slots.device)
    layer = torch.full((), rand_layer, dtype=torch.int64, device=slots.device)
    key = (rand_seed & _WORD, (rand_seed >> 32) & _WORD)
    words = philox((quadruple, slots.long()[:, None], layer, torch.zeros_like(layer)), key)
    return words.flatten(1)[:, :count].view(-1, *shape)


def round_stochastically(values: Tensor, dtype: torch.dtype, words: Tensor) -> Tensor:
    """``values`` in ``dtype``: each one of its two neighbours, the nearer one the more often.

    values: float32.  dtype: float16 or bfloat16.  words: the same shape, int64, 32 random bits each.

    The magnitude is written in units of the last place that ``dtype`` keeps, the word is added as 32 digits behind the
    point, and the rest is cut off. So the mean over all words is the value itself, for normals, and for subnormals,
    whose last place is fixed; float16 takes 2^-24 / 2^32 as the finest part there, and what is below counts as zero.
    Numbers that ``dtype`` has stay as they are; -0, infinities and NaN too. Above the largest finite number L there is
    no neighbour to be fair to: as in round-to-nearest, values below L plus half a last place become L, others infinity.
    """
    kept = FORMATS[dtype]
    bits = values.contiguous().view(torch.int32).long()
    magnitude = bits & 0x7FFFFFFF
    # A float32 subnormal has no leading one, and the exponent of the smallest normal number.
    exponent = (magnitude >> 23).clamp(min=1)
    significand = (magnitude & 0x7FFFFF) | ((magnitude >= 1 << 23).long() << 23)
    # Digits that go: those that dtype's mantissa lacks, and one more for each power of two below its normal numbers.
    drop = 23 - kept.mantissa_bits + (kept.least_exponent - exponent).clamp(min=0)
    units = (((significand << 32) >> drop.clamp(max=63)) + words) >> 32
    # The leading one of a normal number is already a step of the exponent field.
    rounded = units + ((exponent - kept.least_exponent).clamp(min=0) << kept.mantissa_bits)
    rounded = rounded.clamp(max=kept.largest)
    rounded = torch.where(magnitude >= kept.infinite_from, kept.infinity, rounded)
    signed = torch.where(values.isnan(), kept.nan, rounded | ((bits >> 16) & 0x8000))
    return (signed - ((signed & 0x8000) << 1)).to(torch.int16).view(dtype)


def to_stored(values: Tensor, dtype: torch.dtype, slots: Tensor, rand_seed: Tensor | None, rand_layer: int) -> Tensor:
    """New states as they are written: to nearest, or stochastically if there is a seed.

    values: (B, H, P, N), float32 or float64, which passes float32 first.  slots: (B,), where they are written.
    """
    if rand_seed is None:
        return values.to(dtype)
    words = page_words(rand_seed, rand_layer, slots, values.shape[1:])
    return round_stochastically(values.float(), dtype, words)
