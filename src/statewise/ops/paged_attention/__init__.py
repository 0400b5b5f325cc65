"""Attention over the paged KV cache: one token a row, chunks of prompts, and the write of new keys and values."""

from torch import Tensor

from statewise.ops.common import expect, expect_groups, expect_shape, expect_slots, implementation
from statewise.ops.paged_attention.scratch import Scratch
from statewise.ops.ssd_prefill import expect_packed


def paged_attention_step(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
    scratch: Scratch | None = None,
    backend: str = "torch",
) -> Tensor:
    """Attend from one token a row to all tokens of that row, the newest included.

        y = softmax(scale * query . keys^T) values,   over the row's first ``length`` tokens

    query: (D, heads, head_dim).  keys, values: (blocks, block_size, kv_heads, head_dim), a layer's part of a pool;
    query head h reads KV head ``h // (heads / kv_heads)``.
    block_tables: (D, M), the blocks of each row in order; what lies behind its last is not read.
    lengths: (D,), tokens of each row, at most M * block_size, which the kernels do not go beyond; 0 marks a padded row,
    which reads nothing and whose y is zero.
    scale: positive; None: 1 / sqrt(head_dim).
    out: where the result goes, as query is shaped, or None: it is allocated.  scratch: of at least D rows and
    M * block_size tokens, or None: likewise; the Triton backend alone needs it.

    Returns (D, heads, head_dim) in query's dtype; scores and sums are float32 (float64 if query is). On the Triton
    backend a row's bits depend on its own tokens alone: not on the batch, the width of the tables or where its blocks
    are. Raises ArgumentError where shapes or dtypes do not fit.
    """
    op, rows = "paged_attention_step", query.shape[0]
    _expect_cache(op, query, keys, values)
    expect_shape(op, lengths=(lengths, (rows,)), block_tables=(block_tables, (rows, block_tables.shape[-1])))
    expect_slots(op, block_tables=block_tables, lengths=lengths)
    scale = _scale(op, scale, query, out)
    return implementation("paged_attention", backend, op)(
        query, keys, values, block_tables, lengths, scale, out, scratch
    )


def paged_attention_prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cu_seqlens: Tensor,
    block_tables: Tensor,
    starts: Tensor,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
    backend: str = "torch",
) -> Tensor:
    """Attend from every token of a packed batch of chunks to its row's earlier tokens and, causally, to its own chunk.

    query: (T, heads, head_dim), the chunks one after the other.  keys, values, block_tables (Q, M), scale, out: as in
    `paged_attention_step`; the chunks' own keys and values have been written (`store_kv`).
    cu_seqlens: (Q + 1,), from 0 to T; a chunk may be empty.  starts: (Q,), tokens of the row in front of its chunk; the
    chunk ends at most at M * block_size.

    Returns (T, heads, head_dim), dtypes as in `paged_attention_step`. On the Triton backend a token's bits do not
    depend on how its prompt was cut into chunks, nor on the batch. Raises ArgumentError where shapes or dtypes do not
    fit.
    """
    op, sequences = "paged_attention_prefill", cu_seqlens.shape[0] - 1
    _expect_cache(op, query, keys, values)
    expect_shape(op, starts=(starts, (sequences,)), block_tables=(block_tables, (sequences, block_tables.shape[-1])))
    expect_slots(op, cu_seqlens=cu_seqlens, block_tables=block_tables, starts=starts)
    expect_packed(op, cu_seqlens, query.shape[0])
    scale = _scale(op, scale, query, out)
    return implementation("paged_attention", backend, op)(
        query, keys, values, cu_seqlens, block_tables, starts, scale, out
    )


def store_kv(
    key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor, *, backend: str = "torch"
) -> None:
    """Write the keys and values of new tokens to their places in the pool, in one launch on the Triton backend.

    key, value: (L, kv_heads, head_dim).  keys, values: (blocks, block_size, kv_heads, head_dim), changed in place.
    places: (L,), block * block_size + offset, distinct; -1 marks a padded token, which writes nothing.
    The torch backend waits for the host on a GPU. Raises ArgumentError where shapes do not fit.
    """
    op, new, pool = "store_kv", (key.shape[0], *keys.shape[2:]), tuple(keys.shape)
    expect_shape(op, key=(key, new), value=(value, new), values=(values, pool), places=(places, new[:1]))
    expect_slots(op, places=places)
    implementation("paged_attention", backend, op)(key, value, keys, values, places)


def _expect_cache(op: str, query: Tensor, keys: Tensor, values: Tensor) -> None:
    (_, heads, head_dim), (blocks, block_size, kv_heads, _) = query.shape, keys.shape
    shape = (blocks, block_size, kv_heads, head_dim)
    expect_shape(op, keys=(keys, shape), values=(values, shape))
    expect_groups(op, heads, kv_heads)
    alike = query.dtype == keys.dtype == values.dtype
    expect(alike, op, f"query is {query.dtype}, keys {keys.dtype}, values {values.dtype}, expected one dtype")


def _scale(op: str, scale: float | None, query: Tensor, out: Tensor | None) -> float:
    expect_shape(op, out=(out, tuple(query.shape)))
    expect(out is None or out.dtype == query.dtype, op, f"out has another dtype than query, {query.dtype}")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    expect(scale > 0, op, f"scale is {scale}, expected a positive number")
    return scale


__all__ = ["Scratch", "paged_attention_prefill", "paged_attention_step", "store_kv"]
