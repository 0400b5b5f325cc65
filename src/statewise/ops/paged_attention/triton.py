"""Paged attention on an NVIDIA GPU. Grids depend on shapes alone, nothing waits for the host; see the README."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.ops.common import expect
from statewise.ops.paged_attention.scratch import Scratch, most_splits
from statewise.ops.paged_attention.triton_prefill import prefill_kernel
from statewise.ops.paged_attention.triton_step import combine_kernel, split_kernel
from statewise.ops.paged_attention.triton_store import store_kernel
from statewise.ops.triton_common import (
    cdiv,
    dot_precision,
    expect_last_contiguous,
    expect_no_double,
    multiprocessors,
    next_power_of_2,
    pdl_options,
)

LOG2_E = math.log2(math.e)
WIDEST_HEAD = 256
COMBINED = 1024  # numbers of a row that one program combines


@dataclass(frozen=True)
class Launch:
    """By dtype and head_dim alone: were it by the batch too, a row's bits would depend on its company."""

    block_t: int  # tokens of a piece
    num_stages: int  # two more hold one more piece of keys and values: the block table has its place in the pipeline
    num_warps: int
    block_m: int = 16  # queries of a program of prefill
    resident: int = 1  # programs of a step on a multiprocessor; of no influence on the bits


def step_launch(head_dim: int, itemsize: int, block_h: int) -> Launch:
    """Pieces of 16 KiB of keys and as much of values, two of each in a program; as many programs as registers allow.

    block_h: query heads of a KV head, padded.
    """
    block_t = min(128, max(16, 16384 // (_block_d(head_dim) * itemsize)))
    resident = 1 if block_h > 32 else 2 if block_h > 16 or itemsize == 4 else 3
    return Launch(block_t, num_stages=5, num_warps=4, resident=resident)


def prefill_launch(head_dim: int, itemsize: int) -> Launch:
    """What fits the registers and the shared memory of an H200."""
    block_d = _block_d(head_dim)
    if itemsize == 4:
        return Launch(32, 2, 4, 64) if block_d <= 128 else Launch(16, 2, 4, 16)
    return Launch(64, 5, 8, 128) if block_d <= 128 else Launch(32, 4, 8, 128)


def paged_attention_step(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    scale: float,
    out: Tensor | None,
    scratch: Scratch | None,
) -> Tensor:
    op, (rows, heads, head_dim) = "paged_attention_step", query.shape
    out = torch.empty_like(query, memory_format=torch.contiguous_format) if out is None else out
    _expect_layout(op, query, keys, values, out, lengths=lengths)
    block_size, kv_heads = keys.shape[1:3]
    capacity = block_tables.shape[1] * block_size
    if scratch is None:
        scratch = Scratch.allocate(rows, heads, head_dim, capacity, query.device)
    has, needs = tuple(scratch.partial.shape), Scratch.shapes(rows, heads, head_dim, capacity)["partial"]
    enough = has[0] >= rows and has[2] >= needs[2] and (has[1], has[3]) == (heads, head_dim)
    expect(enough, op, f"scratch holds partial sums of shape {has}, expected at least {needs}")
    if rows == 0:
        return out
    block_h = max(16, next_power_of_2(heads // kv_heads))
    splits, run, pdl = has[2], step_launch(head_dim, query.itemsize, block_h), pdl_options(query.device)
    programs = min(run.resident * multiprocessors(query.device), rows * kv_heads * most_splits(capacity))
    split_kernel[(programs,)](
        p_q=query, p_k=keys, p_v=values, p_tables=block_tables, p_lengths=lengths,
        p_partial=scratch.partial, p_stats=scratch.stats,
        rows=rows, capacity=capacity, splits=splits, scale=scale * LOG2_E,
        stride_q=query.stride(0), stride_q_h=query.stride(1), stride_block=keys.stride(0), stride_token=keys.stride(1),
        stride_head=keys.stride(2), stride_table=block_tables.stride(0), stride_entry=block_tables.stride(1),
        HEADS=heads, KV_HEADS=kv_heads, D=head_dim, BLOCK_SIZE=block_size, BLOCK_ROWS=next_power_of_2(rows),
        BLOCK_H=block_h, BLOCK_T=run.block_t, BLOCK_D=_block_d(head_dim),
        STAGES=run.num_stages, PRECISION=dot_precision(query), USE_PDL=bool(pdl), num_warps=run.num_warps, **pdl,
    )  # fmt: skip
    block_d = _block_d(head_dim)
    combined = max(1, min(COMBINED // block_d, next_power_of_2(heads)))
    combine_kernel[cdiv(heads, combined), rows](
        p_partial=scratch.partial, p_stats=scratch.stats, p_lengths=lengths, p_out=out,
        capacity=capacity, splits=splits, stride_out=out.stride(0), stride_out_h=out.stride(1),
        HEADS=heads, D=head_dim, BLOCK_H=combined, BLOCK_D=block_d, USE_PDL=bool(pdl), num_warps=4, **pdl,
    )  # fmt: skip
    return out


def paged_attention_prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cu_seqlens: Tensor,
    block_tables: Tensor,
    starts: Tensor,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    op, (tokens, heads, head_dim) = "paged_attention_prefill", query.shape
    out = torch.empty_like(query, memory_format=torch.contiguous_format) if out is None else out
    _expect_layout(op, query, keys, values, out, cu_seqlens=cu_seqlens, starts=starts)
    if tokens == 0:
        return out
    block_size, kv_heads = keys.shape[1:3]
    sequences, run, pdl = starts.shape[0], prefill_launch(head_dim, query.itemsize), pdl_options(query.device)
    prefill_kernel[heads, tokens // run.block_m + sequences](
        p_q=query, p_k=keys, p_v=values, p_cu_seqlens=cu_seqlens, p_tables=block_tables, p_starts=starts, p_out=out,
        sequences=sequences, scale=scale * LOG2_E, stride_q=query.stride(0), stride_q_h=query.stride(1),
        stride_out=out.stride(0), stride_out_h=out.stride(1), stride_block=keys.stride(0), stride_token=keys.stride(1),
        stride_head=keys.stride(2), stride_table=block_tables.stride(0), stride_entry=block_tables.stride(1),
        GROUP=heads // kv_heads, D=head_dim, BLOCK_SIZE=block_size, BLOCK_M=run.block_m, BLOCK_T=run.block_t,
        BLOCK_D=_block_d(head_dim), STAGES=run.num_stages, PRECISION=dot_precision(query), USE_PDL=bool(pdl),
        num_warps=run.num_warps, **pdl,
    )  # fmt: skip
    return out


def store_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    op, (tokens, kv_heads, head_dim) = "store_kv", key.shape
    expect_no_double(op, key, value, keys, values)
    expect_last_contiguous(op, key=key, value=value, keys=keys, values=values, places=places)
    _expect_alike(op, keys, values)
    if tokens == 0:
        return
    block, pdl = min(1024, next_power_of_2(kv_heads * head_dim)), pdl_options(key.device)
    store_kernel[tokens, cdiv(kv_heads * head_dim, block)](
        p_key=key, p_value=value, p_keys=keys, p_values=values, p_places=places,
        stride_key=key.stride(0), stride_key_h=key.stride(1), stride_value=value.stride(0),
        stride_value_h=value.stride(1), stride_block=keys.stride(0), stride_token=keys.stride(1),
        stride_head=keys.stride(2), KV_HEADS=kv_heads, D=head_dim, BLOCK_SIZE=keys.shape[1], BLOCK=block,
        USE_PDL=bool(pdl), num_warps=4, **pdl,
    )  # fmt: skip


def _block_d(head_dim: int) -> int:
    return max(16, next_power_of_2(head_dim))


def _expect_layout(op: str, query: Tensor, keys: Tensor, values: Tensor, out: Tensor, **indices: Tensor) -> None:
    expect_no_double(op, query)
    expect_last_contiguous(op, query=query, keys=keys, values=values, out=out, **indices)
    _expect_alike(op, keys, values)
    head_dim = query.shape[2]
    expect(head_dim <= WIDEST_HEAD, op, f"head_dim is {head_dim}, the triton backend takes up to {WIDEST_HEAD}")


def _expect_alike(op: str, keys: Tensor, values: Tensor) -> None:
    message = f"keys have strides {keys.stride()}, values {values.stride()}, the triton backend expects the same"
    expect(keys.stride() == values.stride(), op, message)
