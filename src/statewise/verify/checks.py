"""Checks against float64, a function each: decode, new requests beside old ones, slot moves, large slot numbers."""

import torch

from statewise.config import format_bytes
from statewise.verify.report import Result, skipped
from statewise.verify.sides import Sides
from statewise.verify.target import Target

IDLE = 2  # requests that have state and sit a check out
PAST = 2**32  # elements; 32-bit offsets wrap at half of that or there


def decode(target: Target, batch: int) -> Result:
    """Rows at every phase in an order that changes, pads among them, until each has flushed at least once."""
    pads = max(1, batch // 8) if batch >= 4 else 0
    sides = Sides(target, batch - pads + IDLE)
    numbers = torch.arange(sides.requests, device=target.device)
    sides.fill(numbers)
    rows = torch.cat([numbers[:-IDLE], numbers.new_full((pads,), -1)])
    for _ in range(target.window + 2):
        sides.decode(_shuffled(rows, sides))
    note = f"{pads} of the rows are pads" if pads else ""
    return sides.result("decode", batch, numbers, idle=numbers[-IDLE:], note=note)


def requests(target: Target, lengths: list[int]) -> Result:
    """Prefills between decode steps, some in chunks, into slots that held NaN, beside requests that go on."""
    new, old = len(lengths), 6
    sides = Sides(target, old + new + IDLE)
    numbers = torch.arange(sides.requests, device=target.device)
    older, newer = numbers[:old], numbers[old : old + new]
    sides.fill(torch.cat([older, numbers[-IDLE:]]))
    for _ in range(2):
        sides.decode(_shuffled(older, sides))
    sides.decode(older)
    sides.prefill(newer, lengths, [False] * new)
    half = new // 2
    sides.decode(torch.cat([older, newer[half:]]))
    if half:  # the first half was a first chunk: its next is as long as its mirror image's
        sides.prefill(newer[:half], lengths[::-1][:half], [True] * half)
    everyone = numbers[:-IDLE]
    for _ in range(target.window + 2):
        sides.decode(_shuffled(everyone, sides))
    return sides.result("new requests", len(everyone), numbers, idle=numbers[-IDLE:])


def moves(target: Target) -> Result:
    """Copies, a fork, a swap, a cycle, a chain, pads and no-ops at once, between steps that go on from them."""
    live, spare = 9, 4
    sides = Sides(target, live + spare)
    numbers = torch.arange(live + spare, device=target.device)
    sides.fill(numbers[:live])
    rounds = [
        # copy; fork of 1; swap of 2 and 3; cycle of 4, 5, 6; pad; no-op
        ([0, 1, 1, 2, 3, 4, 5, 6, -1, 7], [9, 10, 11, 3, 2, 5, 6, 4, 0, 7]),
        # a chain that ends in a fresh slot; a pad
        ([8, 7, 6, 2], [12, 8, 7, -1]),
        # 0 onto all that it can be forked to
        ([0, 0, 0], [9, 10, 11]),
    ]
    there = list(range(live))
    for sources, destinations in rounds:
        sides.decode(_shuffled(torch.tensor(there, device=target.device), sides))
        pair = (torch.tensor(each, device=target.device) for each in (sources, destinations))
        sides.move(*pair)
        pairs = zip(sources, destinations, strict=True)
        there = sorted({*there, *(d for s, d in pairs if s >= 0 and d >= 0)})
    for _ in range(target.window + 2):
        sides.decode(_shuffled(numbers, sides))
    return sides.result("slot moves", len(numbers), numbers)


def large(target: Target, past: int = PAST) -> Result:
    """Slots on both sides of ``past`` elements of the state and of half of that: decode, a prefill and a move there."""
    elements = target.mamba.inner_size * target.mamba.state_size
    marks = [past // 2 // elements, past // elements]
    slots = marks[1] * 5 // 4 + 2
    used = sorted({0, 1, *(mark + d for mark in marks for d in (-1, 0, 1)), slots - 2, slots - 1})
    reason = _no_room(target, slots, len(used)) if past >= PAST else ""
    if reason:
        return skipped("large slots", len(used), reason)
    places = torch.tensor(used, device=target.device)
    sides = Sides(target, len(used), places, slots)
    numbers = torch.arange(len(used), device=target.device)
    sides.fill(numbers[1:-1])  # the first and the last are fresh
    sides.prefill(numbers[-1:], [64], [False])
    sides.move(numbers[-1:], numbers[:1])
    for _ in range(target.window + 2):
        sides.decode(_shuffled(numbers, sides))
    return sides.result("large slots", len(used), numbers, note=f"slots up to {slots - 1}")


def _no_room(target: Target, slots: int, used: int) -> str:
    """Why the pool cannot be allocated, or an empty string."""
    if target.device.type != "cuda":
        return "memory of that size is looked for on a GPU only"
    torch.cuda.empty_cache()
    there, _ = torch.cuda.mem_get_info(target.device)
    needed = slots * target.spec().bytes_per_slot + 4 * used * target.spec(is_double=True).bytes_per_slot
    if needed > there:
        return f"it needs {format_bytes(needed)} of memory, {format_bytes(there)} are free"
    return ""


def _shuffled(rows: torch.Tensor, sides: Sides) -> torch.Tensor:
    return rows[torch.randperm(len(rows), generator=sides.g, device=rows.device)]
