"""Times a prefill, convolution and chunked scan: ours and the peers', interleaved, in CUDA graphs over many layers.

A contender is checked against float64 on this GPU first, and left out, by name, if it is wrong. A scan without a
convolution of its own is paired with the fastest one at hand.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from statewise.bench.contenders import Step
from statewise.bench.op import WRONG, capture, timed
from statewise.bench.prefill_contenders import (
    OURS,
    READY,
    Call,
    Make,
    PrefillLayer,
    PrefillWorkload,
    convolutions,
    prefill_bytes,
    prefill_operations,
    scans,
)
from statewise.bench.workload import Shape
from statewise.errors import BackendError
from statewise.ops import causal_conv_prefill, ssd_prefill

CHECK = (8192, 8)  # tokens and sequences of the check, at which peers that tune themselves do so


@dataclass(frozen=True)
class PrefillRow:
    """Microseconds a layer at one point. convolutions: those alone; times: convolution and scan."""

    tokens: int
    sequences: int
    has_initial: bool
    floor: float
    convolutions: dict[str, float]
    times: dict[str, float]


@dataclass(frozen=True)
class Checked:
    """The contenders that run here and are right, and the relative errors of y and of the final states of each scan."""

    convolutions: dict[str, Make]
    scans: dict[str, Make]
    errors: dict[str, tuple[float, float]]


def check(shape: Shape, say: Callable[[str], None]) -> Checked:
    """Every contender against float64, on convolved inputs that are exact. ``say`` is told of each one left out.

    Raises BackendError if one of ours is: nothing is reported of an op that is wrong here.
    """
    good: dict[str, dict[str, Make]] = {"convolution": {}, "scan": {}}
    errors: dict[str, tuple[float, float]] = {}
    for kind, found in (("convolution", convolutions()), ("scan", scans())):
        for name, make in found.items():
            try:
                wrong_by = _errors(kind, make, shape, skips_D=name.endswith(READY))
            except Exception as problem:  # as in `statewise.bench.op.check`
                line = (str(problem).splitlines() or [repr(problem)])[0][:120]
                say(f"left out: {name}'s {kind} does not run here: {line}")
                continue
            if max(wrong_by) < WRONG:
                good[kind][name] = make
                if kind == "scan":
                    errors[name] = wrong_by
            else:
                say(f"left out: {name}'s {kind} is wrong here, relative errors {wrong_by} against float64")
    broken = [kind for kind, names in good.items() if OURS not in names]
    if broken:
        raise BackendError(f"our {' and '.join(broken)}: wrong or not able to run on this GPU, so nothing is reported")
    return Checked(good["convolution"], good["scan"], errors)


def _errors(kind: str, make: Make, shape: Shape, skips_D: bool) -> tuple[float, float]:
    """Relative errors of outputs and of the cache (windows or states)."""
    w = PrefillWorkload(shape, *CHECK, has_initial=True, layers=1)
    d = w.layers[0]
    exact_window, exact_state = d.window.double(), d.state.double()
    edges, slots, has = w.cu_seqlens, w.slots, w.has_state
    if kind == "convolution":
        exact = causal_conv_prefill(
            d.xBC.double(), d.weight.double(), edges, bias=d.bias.double(), window=exact_window, slots=slots,
            has_window=has,
        )  # fmt: skip
        make(w)(d)
        return _relative(d.convolved, exact), _relative(d.window, exact_window)
    d.convolved = w.normal(w.tokens, d.xBC.shape[1])
    x, B, C = (t.double() for t in w.parts(d))
    exact, _ = ssd_prefill(
        x, d.dt.double(), d.A.double(), B, C, edges, has_initial_state=has, state=exact_state, slots=slots,
        D=None if skips_D else d.D.double(), dt_bias=d.dt_bias.double(),
    )  # fmt: skip
    make(w)(d)
    return _relative(d.y, exact), _relative(d.state[1:], exact_state[1:])


def _relative(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm())


def measure(
    checked: Checked, shape: Shape, tokens: int, sequences: int, has_initial: bool, bandwidth: float, rate: float
) -> PrefillRow:
    """Median microseconds a layer of every contender. bandwidth: bytes a second; rate: operations a second."""
    w = PrefillWorkload(shape, tokens, sequences, has_initial)
    alone = {name: make(w) for name, make in checked.convolutions.items()}
    convolution_times = _medians({name: _over_layers(w, call) for name, call in alone.items()}, len(w.layers))
    fastest = min(convolution_times, key=lambda name: convolution_times[name])

    def own(name: str) -> Call:
        return alone.get(name.split()[0], alone[fastest])

    both = {name: _over_layers(w, own(name), make(w)) for name, make in checked.scans.items()}
    floor = max(
        prefill_bytes(shape, tokens, sequences, has_initial) / bandwidth, prefill_operations(shape, tokens) / rate
    )
    return PrefillRow(tokens, sequences, has_initial, floor * 1e6, convolution_times, _medians(both, len(w.layers)))


def _over_layers(w: PrefillWorkload, *calls: Callable[[PrefillLayer], None]) -> Step:
    def step() -> None:
        for d in w.layers:
            for call in calls:
                call(d)

    return step


def _medians(steps: dict[str, Step], layers: int, replays: int = 10) -> dict[str, float]:
    graphs = {name: capture(step) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for replay in range(replays + 2):
        events = {name: timed(graph) for name, graph in graphs.items()}
        torch.cuda.synchronize()
        if replay >= 2:
            for name, (begin, end) in events.items():
                times[name].append(begin.elapsed_time(end) * 1e3 / layers)
    return {name: statistics.median(values) for name, values in times.items()}
