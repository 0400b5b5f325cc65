"""What `statewise tune` tries, launches of each op that a table can hold, and how it picks. Runs no kernel."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton import next_power_of_2

from statewise.ops.checkpointed_step import triton as checkpointed
from statewise.ops.mixer_step import triton as mixer
from statewise.ops.state_step import triton as plain
from statewise.ops.tuning.table import PARAMETERS, StepShape, Table

Launch = Any  # an op's own, a frozen dataclass

PLAIN = [(block, warps) for block in (16, 32, 64) for warps in (1, 2, 4)]
FUSED = PLAIN
OUTPUT = [(16, 1), (32, 1), (64, 1), (64, 2)]
# Of the kernel in front of the output kernel: the fields, and what is tried. Launches that leave one of the two kernels
# as the rule has it are tried first, and then the best of each together.
FRONT: dict[str, tuple[tuple[str, str], list[tuple[int, int]]]] = {
    "checkpointed_step": (("block_h", "coefficient_warps"), [(h, w) for h in (4, 8, 16) for w in (1, 2)]),
    "mixer_step": (("block_x", "append_warps"), [(x, w) for x in (512, 1024, 2048) for w in (2, 4, 8)]),
}
MOST_REGISTERS = 128  # of a thread for its part of the state: with more a kernel spills (compiled for sm_90)
NEAR = 1.05  # launches within this of the best are measured again, longer
TIE = 1.01


@dataclass(frozen=True)
class Tunable:
    """An op with a table: its launches and its rule."""

    op: str
    make: Callable[..., Launch]
    rule: Callable[[int, StepShape], Launch]

    def by_rule(self, rows: int, shape: StepShape) -> Launch:
        """What is launched without a table."""
        return self.canonical(self.rule(rows, shape))

    def canonical(self, launch: Launch) -> Launch:
        """Equal to every launch that starts the same kernels."""
        held = self.parameters(launch)
        if held.get("fused"):
            held = {name: held[name] for name in held if name not in FRONT[self.op][0]}
        return self.make(**held)

    def parameters(self, launch: Launch) -> dict[str, int | bool]:
        """Those that a table holds."""
        return {name: getattr(launch, name) for name in PARAMETERS[self.op]}


TUNABLES = (
    Tunable("state_step", plain.Launch, plain.rule),
    Tunable("checkpointed_step", checkpointed.Launch, checkpointed.rule),
    Tunable("mixer_step", mixer.Launch, mixer.rule),
)


def named(ops: Sequence[str]) -> list[Tunable]:
    """Those of TUNABLES."""
    return [tunable for tunable in TUNABLES if tunable.op in ops]


def label(op: str, launch: Launch) -> str:
    """A launch in a few characters: tile x warps, of the kernel that reads the states and of the one in front."""
    tile = f"{launch.block_p}x{launch.num_warps}"
    if op == "state_step":
        return f"{tile} prefetch" if launch.prefetch else tile
    if launch.fused:
        return f"one kernel {tile}"
    size, warps = FRONT[op][0]
    return f"two {tile}, {getattr(launch, size)}x{getattr(launch, warps)}"


def first(tunable: Tunable, rows: int, shape: StepShape) -> list[Launch]:
    """The launches to begin with, the rule's among them."""
    rule = tunable.by_rule(rows, shape)
    if tunable.op == "state_step":
        tried = [plain.Launch(*tile, prefetch) for tile in _fitting(PLAIN, shape) for prefetch in (False, True)]
        return _once([rule, *tried])
    split = _split(tunable, rows, shape)
    names, fronts = FRONT[tunable.op]
    one = [tunable.make(fused=True, block_p=block, num_warps=warps) for block, warps in _fitting(FUSED, shape)]
    tried = [
        replace(split, block_p=block, num_warps=warps) for block, warps in _fitting(OUTPUT, shape, shape.state_bytes)
    ]
    return _once([rule, split, *one, *tried, *(replace(split, **dict(zip(names, f, strict=True))) for f in fronts)])


def second(tunable: Tunable, rows: int, shape: StepShape, times: Mapping[Launch, float]) -> list[Launch]:
    """Those to measure longer, after the times of the first: the rule, the best, and the best parts together."""
    bound = NEAR * min(times.values())
    finalists = [tunable.by_rule(rows, shape), *(launch for launch, time in times.items() if time <= bound)]
    if tunable.op in FRONT:
        names, _ = FRONT[tunable.op]
        split = _split(tunable, rows, shape)
        two = sorted((launch for launch in times if not launch.fused), key=lambda launch: times[launch])
        if two and times[two[0]] <= NEAR * bound:
            output = [launch for launch in two if _parts(launch, names) == _parts(split, names)][:2]
            fronts = [_parts(launch, names) for launch in two if _tile(launch) == _tile(split)][:2]
            finalists += [replace(launch, **front) for launch in output for front in fronts]
    return _once(finalists)


def every_kernel(tunable: Tunable, rows: int, shape: StepShape) -> list[Launch]:
    """Few launches that start, between them, every kernel that may be tried."""
    launches = first(tunable, rows, shape)
    if tunable.op not in FRONT:
        return launches
    names, fronts = FRONT[tunable.op]
    outputs = _fitting(OUTPUT, shape, shape.state_bytes)
    pairs = [(outputs[i % len(outputs)], fronts[i % len(fronts)]) for i in range(max(len(outputs), len(fronts)))]
    two = [
        tunable.make(fused=False, block_p=block, num_warps=warps, **dict(zip(names, front, strict=True)))
        for (block, warps), front in pairs
    ]
    return [launch for launch in launches if launch.fused] + two


def choose(times: Sequence[Mapping[Launch, float]], rules: Sequence[Launch]) -> list[Launch]:
    """A launch for each of some batches, ascending: few different ones, each as good as the best of its batch.

    As good: within 1 %, and no slower than the rule's. Neighbours share one where they can; taking the longest run
    from the left gives the fewest.
    """
    good = [
        {launch for launch, time in at.items() if time <= min(TIE * min(at.values()), at[rule])}
        for at, rule in zip(times, rules, strict=True)
    ]
    chosen: list[Launch] = []
    while len(chosen) < len(times):
        begin = end = len(chosen)
        common = good[begin]
        while end < len(times) and common & good[end]:
            common = common & good[end]
            end += 1
        run = times[begin:end]
        best = min(common, key=lambda launch: (sum(math.log(at[launch]) for at in run), repr(launch)))
        chosen += [best] * (end - begin)
    return chosen


def as_table(
    tunable: Tunable, shape: StepShape, heads: int, batches: Sequence[int], chosen: Sequence[Launch], **names: str
) -> Table:
    """What was chosen for ascending batches; names: gpu and measured.

    A batch between two takes what the larger one does. Below half of the smallest the rule holds, since nothing near
    was measured.
    """
    steps: list[tuple[int, dict[str, int | bool] | None]] = []
    if batches[0] > 1:
        steps.append((batches[0] // 2 * heads, None))
    for batch, launch in zip(batches, chosen, strict=True):
        held = tunable.parameters(launch)
        if steps and steps[-1][1] == held:
            steps.pop()
        steps.append((batch * heads, held))
    return Table(op=tunable.op, shape=shape.of(tunable.op), steps=tuple(steps), **names)


def _split(tunable: Tunable, rows: int, shape: StepShape) -> Launch:
    return tunable.canonical(tunable.make(**vars(checkpointed.split_rule(rows, shape))))


def _fitting(tiles: Sequence[tuple[int, int]], shape: StepShape, itemsize: int = 4) -> list[tuple[int, int]]:
    """Tiles no larger than a head needs, nor than the threads hold. itemsize: bytes of a number of the state there.

    The smallest blocks are always tried.
    """
    most, states = next_power_of_2(shape.head_dim), next_power_of_2(shape.state_size)

    def fits(block: int, warps: int) -> bool:
        return block <= most and block * states * itemsize <= 4 * MOST_REGISTERS * 32 * warps

    return [(block, warps) for block, warps in tiles if block == 16 or fits(block, warps)]


def _tile(launch: Launch) -> tuple[int, int]:
    return launch.block_p, launch.num_warps


def _parts(launch: Launch, names: Sequence[str]) -> dict[str, int]:
    return {name: getattr(launch, name) for name in names}


def _once(launches: Iterable[Launch]) -> list[Launch]:
    return list(dict.fromkeys(launches))
