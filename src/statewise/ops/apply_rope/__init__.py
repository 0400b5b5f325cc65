"""Rotary position embedding: pairs of channels turn by an angle that grows with the position (Su et al., 2021)."""

from torch import Tensor, float64

from statewise.ops.common import expect, expect_shape, expect_slots, implementation


def apply_rope(query: Tensor, key: Tensor, positions: Tensor, inv_freq: Tensor, *, backend: str = "torch") -> None:
    """Rotate the first R channels of every head of ``query`` and ``key`` in place; the rest stays.

    query: (L, heads, D).  key: (L, kv_heads, D), same dtype.  positions: (L,), int32 or int64; a negative one (of a
    padded row) turns the other way and is otherwise like any.  inv_freq: (R / 2,), float64, radians a position,
    R <= D: `frequencies.inverse_frequencies`.
    Channel i < R / 2 is a pair with channel i + R / 2 (the halves of transformers' ``rotate_half``; GPT-J pairs
    neighbours), and the pair turns by ``position * inv_freq[i]``. Angles are float64, products float32 (float64 in
    double). A row's result depends on that row alone. Raises ArgumentError where shapes or dtypes do not fit.
    """
    op = "apply_rope"
    expect(query.dim() == 3, op, f"query has shape {tuple(query.shape)}, expected (L, heads, head_dim)")
    tokens, _, head_dim = query.shape
    expect(key.dim() == 3, op, f"key has shape {tuple(key.shape)}, expected (L, kv_heads, head_dim)")
    expect_shape(op, key=(key, (tokens, key.shape[1], head_dim)), positions=(positions, (tokens,)))
    expect(key.dtype == query.dtype, op, f"key is {key.dtype}, query {query.dtype}, expected the same")
    expect_slots(op, positions=positions)
    expect(inv_freq.dim() == 1, op, f"inv_freq has shape {tuple(inv_freq.shape)}, expected (R / 2,)")
    expect(inv_freq.dtype == float64, op, f"inv_freq is {inv_freq.dtype}, expected torch.float64")
    rotary_dim = 2 * inv_freq.shape[0]
    expect(0 < rotary_dim <= head_dim, op, f"R is {rotary_dim}, expected 2 to head_dim = {head_dim}")
    implementation(op, backend)(query, key, positions, inv_freq)
