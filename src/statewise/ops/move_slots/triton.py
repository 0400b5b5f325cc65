"""Slot moves on an NVIDIA GPU: a program owns a few words of a page and moves them for all slots at once."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.errors import ArgumentError
from statewise.ops.common import expect
from statewise.ops.triton_common import cdiv, expect_last_contiguous, next_power_of_2

MAX_MOVES = 4096
WORDS = (torch.int32, torch.int16, torch.int8)


@triton.jit(do_not_specialize=["moves"])
def move_slots_kernel(
    p_words, p_sources, p_destinations,
    moves, page, stride_layer, stride_slot,
    BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    i_layer = tl.program_id(1).to(tl.int64)
    o_w = tl.program_id(0).to(tl.int64) * BLOCK_W + tl.arange(0, BLOCK_W)
    o_m = tl.arange(0, BLOCK_M)
    b_source = tl.load(p_sources + o_m, mask=o_m < moves, other=-1).to(tl.int64)
    b_destination = tl.load(p_destinations + o_m, mask=o_m < moves, other=-1).to(tl.int64)
    m_move = (b_source >= 0) & (b_destination >= 0) & (b_source != b_destination)
    mask = m_move[:, None] & (o_w < page)[None, :]
    p_page = p_words + i_layer * stride_layer + o_w[None, :]
    b_words = tl.load(p_page + b_source[:, None] * stride_slot, mask=mask)
    tl.debug_barrier()  # every source has been read; no other program reads or writes these words
    tl.store(p_page + b_destination[:, None] * stride_slot, b_words, mask=mask)


def launch_parameters(moves: int, page: int) -> tuple[int, int, int]:
    """(BLOCK_M, BLOCK_W, num_warps): all moves times at least 8 words (a sector), 32 words a thread."""
    block_m = next_power_of_2(moves)
    block_w = min(next_power_of_2(page), max(8, 4096 // block_m))
    return block_m, block_w, max(1, min(32, block_m * block_w // 1024))


def move_slots(tensors: Sequence[Tensor], sources: Tensor, destinations: Tensor, slot_dims: Sequence[int]) -> None:
    moves = sources.shape[0]
    expect(moves <= MAX_MOVES, "move_slots", f"{moves} moves, the triton backend takes up to {MAX_MOVES}")
    expect_last_contiguous("move_slots", sources=sources, destinations=destinations)
    pages = [_pages(i, t, dim) for i, (t, dim) in enumerate(zip(tensors, slot_dims, strict=True)) if t.numel()]
    for words, layers, page, stride_layer, stride_slot in pages if moves else []:
        block_m, block_w, num_warps = launch_parameters(moves, page)
        move_slots_kernel[(cdiv(page, block_w), layers)](
            p_words=words, p_sources=sources, p_destinations=destinations,
            moves=moves, page=page, stride_layer=stride_layer, stride_slot=stride_slot,
            BLOCK_M=block_m, BLOCK_W=block_w, num_warps=num_warps,
        )  # fmt: skip


class _Pages(NamedTuple):
    """A tensor as layers x slots x words of a page; sizes and strides in words."""

    words: Tensor
    layers: int
    page: int
    stride_layer: int
    stride_slot: int


def _pages(index: int, tensor: Tensor, dim: int) -> _Pages:
    """View a tensor as pages of the widest words that fit it. Raises ArgumentError unless its pages are dense."""
    shape, strides, size = tensor.shape, tensor.stride(), tensor.element_size()
    layers, stride_layer = _merged(shape[:dim], strides[:dim])
    page, stride = _merged(shape[dim + 1 :], strides[dim + 1 :])
    if stride_layer is None or (page > 1 and stride != 1) or stride is None:
        message = f"tensor {index} has shape {tuple(shape)} and strides {strides}: its pages are not dense"
        raise ArgumentError(f"move_slots: {message}, as the triton backend expects")
    page, stride_layer, stride_slot = page * size, stride_layer * size, strides[dim] * size
    numbers = (page, stride_layer, stride_slot, tensor.storage_offset() * size, tensor.data_ptr())
    word = next(word for word in WORDS if all(number % word.itemsize == 0 for number in numbers))
    first = tensor.as_strided((max(1, word.itemsize // size),), (1,)).view(word)
    return _Pages(first, layers, page // word.itemsize, stride_layer // word.itemsize, stride_slot // word.itemsize)


def _merged(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int | None]:
    """Size and stride of these dimensions as one: the stride is None if they are not one, 0 if there is one place."""
    size, stride = 1, 0
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if size > 1 and step != stride * size:
            return size, None
        stride = step if size == 1 else stride
        size *= extent
    return size, stride
