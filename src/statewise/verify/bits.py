"""Checks of equality bit by bit: a CUDA graph against eager, repeated launches, another order of the batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise.bench.op import capture
from statewise.verify.report import Result, passed, skipped
from statewise.verify.side import same_bits
from statewise.verify.sides import Sides
from statewise.verify.target import Target

TIMES = 5


def graph(target: Target, batch: int) -> Result:
    """2 W steps replayed from one captured step, and the same steps eagerly."""
    if target.device.type != "cuda":
        return skipped("graph = eager", batch, "CUDA graphs need a GPU")
    if target.tested.name == "torch":
        return skipped("graph = eager", batch, "the torch backend waits for the device and cannot be captured")
    return replays(target, batch, capture)


def replays(target: Target, batch: int, capture: Callable[[Callable[[], None]], Any]) -> Result:
    """`graph` with this ``capture``, which takes a step and returns what has a ``replay()`` that repeats it."""
    steps = 2 * target.window
    sides, slots = _filled(target, batch)
    side, everything = sides.tested, torch.arange(sides.tested.pool.slots, device=target.device)
    inputs = [sides.inputs(batch) for _ in range(steps)]
    before = side.copy_of(everything)
    eager = []
    for projected in inputs:
        eager.append(side.decode(projected, slots).clone())
        side.advance(slots)
    after = side.copy_of(everything)

    static, out = inputs[0].clone(), torch.empty_like(eager[0])

    def step() -> None:
        out.copy_(side.decode(static, slots))
        side.advance(slots)

    captured = capture(step)
    side.restore(everything, before)
    problems: list[str] = []
    for i, projected in enumerate(inputs):
        static.copy_(projected)
        captured.replay()
        if not problems and not _equal(out, eager[i]):
            problems.append(f"outputs differ first at step {i + 1} at batch {batch}")
    if not same_bits(after, side.copy_of(everything)):
        problems.append("the caches differ afterwards")
    return passed("graph = eager", batch, problems, note=f"{steps} steps")


def repeats(target: Target, batch: int) -> Result:
    """One step from the same caches several times and, but for torch's ops, once with its rows in another order."""
    sides, slots = _filled(target, batch)
    side, everything = sides.tested, torch.arange(sides.tested.pool.slots, device=target.device)
    projected, before = sides.inputs(batch), side.copy_of(everything)
    first = side.decode(projected, slots).clone()
    after, problems = side.copy_of(everything), []
    if not bool(first.isfinite().all()):
        problems.append("an output is not finite")
    for time in range(2, TIMES + 1):
        side.restore(everything, before)
        again = side.decode(projected, slots)
        if not (_equal(first, again) and same_bits(after, side.copy_of(everything))):
            problems.append(f"launch {time} differs from the first at batch {batch}")
            break
    what = f"{TIMES} launches"
    if target.tested.name == "torch":  # what its vector loops leave over is computed by other instructions
        return passed("same bits", batch, problems, note=what)
    side.restore(everything, before)
    order = torch.randperm(batch, generator=sides.g, device=target.device)
    other = side.decode(projected[order], slots[order])
    if not (_equal(first[order], other) and same_bits(after, side.copy_of(everything))):
        problems.append(f"another order of the rows gives other bits at batch {batch}")
    return passed("same bits", batch, problems, note=f"{what} and another order")


def _filled(target: Target, batch: int) -> tuple[Sides, Tensor]:
    """Requests at every phase, and their slots."""
    sides = Sides(target, batch)
    sides.fill(torch.arange(batch, device=target.device))
    return sides, sides.places


def _equal(a: Tensor, b: Tensor) -> bool:
    return same_bits({"y": a}, {"y": b})
