"""Measures launches of our own steps on this GPU and picks the best for each batch: what `statewise tune` does.

As the benchmark: contenders interleaved, each in a CUDA graph over layers whose states exceed the L2 cache, trackers
that advance, medians over whole windows. A launch is checked against float64 before it is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from triton.errors import TritonError

from statewise.bench.contenders import Call, Contender, Step, contenders, step_arguments
from statewise.bench.mixer import MixerLayer, MixerWorkload, mixer_arguments, mixer_contenders
from statewise.bench.op import WRONG, measure
from statewise.bench.tune_candidates import TUNABLES, Launch, Tunable, as_table, choose, first, label, second
from statewise.bench.workload import Shape, layers_for
from statewise.errors import BackendError
from statewise.ops import checkpointed_step, mixer_step, state_step, tuning
from statewise.ops.checkpointed_step.scratch import block_w
from statewise.ops.tuning.table import StepShape, Table

Say = Callable[[str], None]

ACTIVATION_BYTES = 2  # the benchmark's activations are bfloat16
RINGS = ("state", "x_ring", "B_ring", "dt_ring")
# op -> what a step of it writes.
CACHES = {"state_step": ("state",), "checkpointed_step": RINGS, "mixer_step": (*RINGS, "conv_window")}
ALL_ROWS = 1 << 40


@dataclass(frozen=True)
class Point:
    """Microseconds a layer at one batch of the launches that were measured to the end, the rule's among them."""

    batch: int
    times: dict[Launch, float]
    rule: Launch


@dataclass(frozen=True)
class Curve:
    """What was measured of an op over ascending batches, and what is chosen for each."""

    tunable: Tunable
    shape: StepShape
    points: tuple[Point, ...]
    chosen: tuple[Launch, ...]

    def table(self, heads: int, gpu: str, measured: str) -> Table:
        """As a file holds it."""
        batches = [point.batch for point in self.points]
        return as_table(self.tunable, self.shape, heads, batches, self.chosen, gpu=gpu, measured=measured)


def step_shape(shape: Shape, state_dtype: torch.dtype) -> StepShape:
    """With the promise of prefetch, which the engine makes."""
    heads = shape.heads // shape.groups
    sizes = shape.head_dim, shape.state_size, state_dtype.itemsize, ACTIVATION_BYTES
    return StepShape(*sizes, heads, block_w(shape.window), True)


def tune(
    shape: Shape, state_dtype: torch.dtype, batches: Sequence[int], say: Say, tunables: Sequence[Tunable] = TUNABLES
) -> list[Curve]:
    """A curve an op. ``say`` is told of every launch that is left out, with the reason, and of batches without memory.

    Raises BackendError if the rule's own launch is wrong here or does not run, or if no batch fits in memory.
    """
    checked, key = Checked(shape, state_dtype, say), step_shape(shape, state_dtype)
    points: dict[str, list[Point]] = {tunable.op: [] for tunable in tunables}
    for batch in sorted(set(batches)):
        try:
            w = workload(shape, batch, state_dtype, layers_for(shape, batch, state_dtype))
            for tunable in tunables:
                points[tunable.op].append(_point(tunable, checked, w, key))
            del w
        except torch.OutOfMemoryError:
            say(f"batch {batch} is left out: it does not fit in the GPU's memory")
            torch.cuda.empty_cache()
        else:
            say(f"measured batch {batch}, {str(state_dtype).removeprefix('torch.')} state")
    if not all(points.values()):
        raise BackendError("no batch fits in the GPU's memory, so nothing was measured")
    return [_curve(tunable, key, points[tunable.op]) for tunable in tunables]


def _curve(tunable: Tunable, shape: StepShape, points: Sequence[Point]) -> Curve:
    chosen = choose([point.times for point in points], [point.rule for point in points])
    return Curve(tunable, shape, tuple(points), tuple(chosen))


def _point(tunable: Tunable, checked: "Checked", w: MixerWorkload, shape: StepShape) -> Point:
    """All launches over a window, and then the best over three."""
    rows, window = w.batch * w.shape.heads, w.shape.window
    window *= -(-16 // window)
    rule = tunable.by_rule(rows, shape)
    if not checked.is_good(tunable, rule):
        named = label(tunable.op, rule)
        raise BackendError(f"{tunable.op}: the rule's own launch, {named}, is wrong or does not run on this GPU")

    def times(launches: Sequence[Launch], replays: int) -> dict[Launch, float]:
        named = {label(tunable.op, launch): launch for launch in launches if checked.is_good(tunable, launch)}
        row = measure([launched(tunable, launch, shape) for launch in named.values()], w, 0.0, replays)
        return {named[name]: time for name, time in row.times.items()}

    quick = times(first(tunable, rows, shape), window)
    return Point(w.batch, times(second(tunable, rows, shape, quick), 3 * window), rule)


def launched(tunable: Tunable, launch: Launch, shape: StepShape) -> Contender:
    """Our step, launched so whatever the batch."""
    found = mixer_contenders() if tunable.op == "mixer_step" else contenders()
    kind = "plain" if tunable.op == "state_step" else "checkpointed"
    base = next(contender for contender in found if contender.ours and contender.kind == kind)
    steps = ((ALL_ROWS, tunable.parameters(launch)),)
    table = Table(torch.cuda.get_device_name(), tunable.op, shape.of(tunable.op), steps)

    def make(w: Any) -> tuple[Call, Step | None]:
        call, advance = base.make(w)

        def with_table(d: Any) -> Tensor:
            with tuning.use([table]):
                return call(d)

        return with_table, advance

    return replace(base, name=label(tunable.op, launch), make=make)


def workload(shape: Shape, batch: int, state_dtype: torch.dtype, layers: int) -> MixerWorkload:
    """With random numbers where a convolution would leave its own."""
    w = MixerWorkload(shape, batch, state_dtype, layers)
    for d in w.layers:
        d.convolved.normal_(generator=w.g)
    return w


class Checked:
    """Which launches are right on this GPU: outputs and all that is written, against float64, rows at every phase."""

    def __init__(self, shape: Shape, state_dtype: torch.dtype, say: Say):
        self.say, self.shape = say, step_shape(shape, state_dtype)
        self.w = workload(shape, shape.window, state_dtype, layers=1)
        self.before = {name: getattr(self.w.layers[0], name).clone() for name in CACHES["mixer_step"]}
        self.exact: dict[str, dict[str, Tensor]] = {}
        self.known: dict[tuple[str, Launch], bool] = {}

    def is_good(self, tunable: Tunable, launch: Launch) -> bool:
        """Whether it runs and is right; tried once. ``say`` is told if not."""
        known = self.known.get((tunable.op, launch))
        if known is None:
            problem = self._problem(tunable, launch)
            if problem:
                self.say(f"left out: {tunable.op} as {label(tunable.op, launch)} {problem}")
            known = self.known[tunable.op, launch] = not problem
        return known

    def _problem(self, tunable: Tunable, launch: Launch) -> str:
        call, _ = launched(tunable, launch, self.shape).make(self.w)
        d = self.w.layers[0]
        self._restore()
        exact = self.exact.get(tunable.op) or self._exact(tunable.op)
        try:
            out = call(d)
            torch.cuda.synchronize()
        except (TritonError, RuntimeError) as error:
            return f"does not run here: {(str(error).splitlines() or ['no message'])[0][:120]}"
        found = {name: getattr(d, name) for name in CACHES[tunable.op]} | {"out": out}
        errors = {
            name: float((value.double() - exact[name]).norm() / exact[name].norm()) for name, value in found.items()
        }
        wrong = [f"{name} {error:.1e}" for name, error in errors.items() if not error < WRONG]
        return f"is wrong here, relative error of {', '.join(wrong)} against float64" if wrong else ""

    def _restore(self) -> None:
        for name, value in self.before.items():
            getattr(self.w.layers[0], name).copy_(value)

    def _exact(self, op: str) -> dict[str, Tensor]:
        """The output and all that is written, in float64, of the torch backend."""
        layer, w = self.w.layers[0], self.w
        d = MixerLayer(**{field.name: _double(getattr(layer, field.name)) for field in fields(layer)})
        if op == "mixer_step":
            out = mixer_step(**mixer_arguments(d, w), window=w.shape.window)
        elif op == "state_step":
            out = state_step(d.x, d.dt, d.A, d.B, d.C, d.state, read_slots=w.slots, D=d.D, dt_bias=d.dt_bias)
        else:
            out = checkpointed_step(**step_arguments(d, w))[:, 0]
        self.exact[op] = {name: getattr(d, name) for name in CACHES[op]} | {"out": out}
        return self.exact[op]


def _double(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t
