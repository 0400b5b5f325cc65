"""Stochastic rounding of a tile of a state in Triton: the words and the bits of `statewise.ops.rounding`.

The bits are made by integer arithmetic, so they are right in the interpreter too, whose casts to bfloat16 truncate.
"""

import triton
import triton.language as tl

HALF = tl.constexpr(0x80000000)
LARGEST_FP16 = tl.constexpr(65504.0)
INFINITY_FP16 = tl.constexpr(0x7C00)
NAN_FP16 = tl.constexpr(0x7E00)
LARGEST_BF16 = tl.constexpr(float.fromhex("0x1.fep127"))
NAN_BF16 = tl.constexpr(0x7FC0)


@triton.jit
def _tile_words(b_row, i_c, i_slot, b_seed, layer, N: tl.constexpr, BLOCK_C: tl.constexpr):
    """The words of a tile's elements. Four elements share a counter; one row's quadruples may end in the next row."""
    o_element = b_row[:, None].to(tl.uint32) * N + (i_c + tl.arange(0, BLOCK_C)).to(tl.uint32)[None, :]
    b_w0, b_w1, b_w2, b_w3 = _philox(o_element >> 2, i_slot, b_seed, layer)
    b_place = o_element & 3
    b_low = tl.where(b_place == 0, b_w0, b_w1)
    b_high = tl.where(b_place == 2, b_w2, b_w3)
    return tl.where(b_place < 2, b_low, b_high)


@triton.jit
def _philox(b_quadruple, i_slot, b_seed, layer):
    """Philox4x32-10 for counter (quadruple, slot, layer, 0); the halves of the seed are the key.

    `tl.philox` draws the same words with twice the multiplications: it takes each product's halves one by one.
    """
    b_seed = b_seed.to(tl.uint64)
    b_k0, b_k1 = b_seed.to(tl.uint32), (b_seed >> 32).to(tl.uint32)
    b_c0, b_c1, b_c2, b_c3 = b_quadruple, i_slot.to(tl.uint32), layer.to(tl.uint32), layer.to(tl.uint32) * 0
    for _ in tl.static_range(10):
        b_wide0 = b_c0.to(tl.uint64) * 0xD2511F53
        b_wide2 = b_c2.to(tl.uint64) * 0xCD9E8D57
        b_c0 = (b_wide2 >> 32).to(tl.uint32) ^ b_c1 ^ b_k0
        b_c2 = (b_wide0 >> 32).to(tl.uint32) ^ b_c3 ^ b_k1
        b_c1, b_c3 = b_wide2.to(tl.uint32), b_wide0.to(tl.uint32)
        b_k0 = tl.add(b_k0, 0x9E3779B9, sanitize_overflow=False)
        b_k1 = tl.add(b_k1, 0xBB67AE85, sanitize_overflow=False)
    return b_c0, b_c1, b_c2, b_c3


@triton.jit
def _rounded_bits(b_values, b_word, dtype: tl.constexpr):
    """float32 values as the bits of ``dtype``, uint16: what `statewise.ops.rounding.round_stochastically` computes.

    From the largest finite number on half a last place is added, not the word: that rounds to nearest.
    """
    b_bits = b_values.to(tl.uint32, bitcast=True)
    if dtype == tl.bfloat16:
        b_word = tl.where(tl.abs(b_values) < LARGEST_BF16, b_word, HALF)
        b_rounded = tl.where(b_values == b_values, (b_bits + (b_word >> 16)) >> 16, NAN_BF16)
    else:
        tl.static_assert(dtype == tl.float16, "only float16 and bfloat16 are rounded stochastically")
        b_word = tl.where(tl.abs(b_values) < LARGEST_FP16, b_word, HALF)
        b_exponent = ((b_bits >> 23) & 0xFF).to(tl.int32)
        # A float32 subnormal is far below what float16 can keep: its missing leading one makes no difference.
        b_significand = ((b_bits & 0x7FFFFF) | 0x800000).to(tl.uint64) << 32
        b_drop = tl.minimum(tl.maximum(126 - b_exponent, 13), 63).to(tl.uint64)
        b_units = (((b_significand >> b_drop) + b_word.to(tl.uint64)) >> 32).to(tl.uint32)
        b_rounded = b_units + (tl.maximum(b_exponent - 113, 0).to(tl.uint32) << 10)
        b_rounded = tl.minimum(b_rounded, INFINITY_FP16) | ((b_bits >> 16) & 0x8000)
        b_rounded = tl.where(b_values == b_values, b_rounded, NAN_FP16)
    return b_rounded.to(tl.uint16)


@triton.jit
def round_tile(b_values, b_row, i_c, i_slot, b_seed, layer, N: tl.constexpr, dtype: tl.constexpr):
    """A tile of a state as it is written, in ``dtype`` (float16 or bfloat16).

    b_values: (BLOCK_P, BLOCK_C), float32.  b_row: (BLOCK_P,), the rows' places h * P + p in the slot's page, which has
    fewer than 2^31 elements.  i_c: the first channel, a multiple of 4.  i_slot: where the tile is written.
    b_seed: what rand_seed holds.  layer: rand_layer; name it in ``do_not_specialize``, or each value compiles anew.
    """
    BLOCK_P: tl.constexpr = b_values.shape[0]
    BLOCK_C: tl.constexpr = b_values.shape[1]
    if N % 4 == 0 and BLOCK_C % 4 == 0:
        # One Philox call a quadruple: the tile is split into the quadruples' first, second, third, fourth elements.
        b_pairs = tl.reshape(b_values, [BLOCK_P, BLOCK_C // 4, 2, 2])
        b_even, b_odd = tl.split(b_pairs)
        b_v0, b_v2 = tl.split(b_even)
        b_v1, b_v3 = tl.split(b_odd)
        o_quadruple = (i_c // 4 + tl.arange(0, BLOCK_C // 4)).to(tl.uint32)
        o_quadruple = b_row[:, None].to(tl.uint32) * (N // 4) + o_quadruple[None, :]
        # Changes nothing, but ties the words to the layout of the values: each thread makes those of its own elements.
        # Otherwise they are made in another layout, and pass through shared memory.
        o_quadruple = tl.minimum(o_quadruple, b_v0.to(tl.uint32, bitcast=True) | 0x80000000)
        b_w0, b_w1, b_w2, b_w3 = _philox(o_quadruple, i_slot, b_seed, layer)
        b_even = tl.join(_rounded_bits(b_v0, b_w0, dtype), _rounded_bits(b_v2, b_w2, dtype))
        b_odd = tl.join(_rounded_bits(b_v1, b_w1, dtype), _rounded_bits(b_v3, b_w3, dtype))
        b_bits = tl.reshape(tl.join(b_even, b_odd), [BLOCK_P, BLOCK_C])
    else:
        b_word = _tile_words(b_row, i_c, i_slot, b_seed, layer, N, BLOCK_C)
        b_bits = _rounded_bits(b_values, b_word, dtype)
    return b_bits.to(dtype, bitcast=True)


@triton.jit
def as_written(
    b_values, b_row, i_c, i_slot, p_rand_seed, rand_layer, N: tl.constexpr, HAS_SEED: tl.constexpr, dtype: tl.constexpr
):
    """A tile of a state as it is written: by `round_tile` where there is a seed, else rounded to nearest."""
    if HAS_SEED:
        b_new = round_tile(b_values, b_row, i_c, i_slot, tl.load(p_rand_seed), rand_layer, N, dtype)
    else:
        b_new = b_values.to(dtype)
    return b_new
