"""Slot moves, one move and one tensor at a time, out of a copy of everything."""

from collections.abc import Sequence

from torch import Tensor

from statewise.ops.common import expect


def move_slots(tensors: Sequence[Tensor], sources: Tensor, destinations: Tensor, slot_dims: Sequence[int]) -> None:
    pairs = zip(sources.tolist(), destinations.tolist(), strict=True)
    moves = [(s, d) for s, d in pairs if s >= 0 and d >= 0 and s != d]
    written = [d for _, d in moves]
    expect(len(set(written)) == len(written), "move_slots", f"destinations {sorted(written)} are not distinct")
    for tensor, dim in zip(tensors, slot_dims, strict=True):
        before = tensor.clone()
        for source, destination in moves:
            tensor.select(dim, destination).copy_(before.select(dim, source))
