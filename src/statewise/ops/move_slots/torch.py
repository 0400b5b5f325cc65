"""Slot moves, vectorised: all sources of a tensor are gathered before the first destination is written."""

from collections.abc import Sequence

from torch import Tensor


def move_slots(tensors: Sequence[Tensor], sources: Tensor, destinations: Tensor, slot_dims: Sequence[int]) -> None:
    moves = ((sources >= 0) & (destinations >= 0) & (sources != destinations)).nonzero().squeeze(1)
    old, new = sources[moves].long(), destinations[moves].long()
    for tensor, dim in zip(tensors, slot_dims, strict=True):
        tensor.index_copy_(dim, new, tensor.index_select(dim, old))
